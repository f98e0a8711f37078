// The instructions of a compiled program. executor.h says how they run together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor.h"
#include "quantize.h"
#include "rows_kernels.h"

namespace tidemill {

// Quantised rows: in shared memory, or, where `replicated` and the step is small, in each
// thread's replica memory.
struct Blocks {
  std::size_t shared = 0;   // offset of row 0
  std::size_t replica = 0;
  int per_row = 0;
  bool replicated = false;

  ActivationBlock* row(const Step& step, const Worker& worker, int r) const {
    std::byte* base = replicated && step.small ? worker.replica + replica : step.shared + shared;
    return reinterpret_cast<ActivationBlock*>(base) + static_cast<std::ptrdiff_t>(r) * per_row;
  }
};

// ---- rows

// A value of a RowChain, by row: an input, an output, or something in between that lives in the
// thread's scratch memory. A gathered input is read at the token that a row stands for.
struct Slot {
  int width = 0;
  bool is_shared = false;  // lies at `view`; otherwise in scratch
  bool is_input = false;
  bool gather = false;
  View view;
};

enum class RowOpKind : int {
  copy, rms_norm, add, mul, scale, softcap, activation, gated, rope, route, combine, quantize
};

// One operation on one row. Operands are slots and a column within each.
struct RowOp {
  RowOpKind kind = RowOpKind::copy;
  int x = 0, x_col = 0;
  int y = 0, y_col = 0;    // add, mul; combine: the weights
  int out = 0, out_col = 0;
  int ids = 0, spare = 0;  // route: where the ids go, and a row of scratch
  int width = 0;           // per head (gated: of the result)
  int heads = 1;           // combine and route: k
  float factor = 0.0f;     // rms_norm: eps; scale; softcap
  int activation = 0;      // ActivationKind
  int index = 0;           // rms_norm: a vector; rope: a table; quantize: which Blocks
  bool normalise = false;
};

// Row-wise operations, one row after another. Rows are shared out over the threads; but a chain
// whose results are quantised runs, in a small step, on every thread for all rows.
class RowChain final : public Instruction {
 public:
  RowChain(std::string name, const Executor& executor, Domain domain, std::vector<Slot> slots,
           std::vector<RowOp> ops, std::vector<Blocks> blocks);
  void run(const Step& step, Worker& worker) override;
  std::size_t scratch_bytes() const override { return scratch_floats_ * sizeof(float); }

  static constexpr int kMaxSlots = 64;

 private:
  void run_row(const Step& step, const Worker& worker, int row, float* const* at) const;

  Domain domain_;
  std::vector<Slot> slots_;
  std::vector<RowOp> ops_;
  std::vector<Blocks> blocks_;
  std::vector<Vector> vectors_;        // by op, where it has one
  std::vector<RopeTable> rope_tables_;
  std::vector<std::size_t> scratch_offset_;
  std::size_t scratch_floats_ = 0;
};

// out[t] = scale * table[token[t]]
class EmbedRows final : public Instruction {
 public:
  EmbedRows(std::string name, const Executor& executor, int table, const View& out, float scale);
  void run(const Step& step, Worker& worker) override;

 private:
  const Executor& executor_;
  int table_;
  View out_;
  float scale_;
};

// The cosines and sines of this step's positions, times `magnitude`.
class RopeAngles final : public Instruction {
 public:
  RopeAngles(std::string name, const RopeTable& table, std::vector<double> inv_freq,
             double magnitude);
  void run(const Step& step, Worker& worker) override;

 private:
  RopeTable table_;
  std::vector<double> inv_freq_;  // [pairs]
  double magnitude_;
};

// ---- products

// Some columns of a product's result: one matrix, where its rows go, its bias (or none).
struct ProductPart {
  Matrix matrix;
  int column = 0;
  std::optional<Vector> bias;
};

// What a product reads, as the types of its matrices need it: quantised rows, or floats; `gather`
// reads floats at the tokens that rows stand for.
struct ProductInput {
  std::optional<Blocks> quantized;
  View floats;
  bool gather = false;
};

// Tiles of one part, and those of several parts that a thread takes as one item.
struct TileRange {
  int part, begin, end;
};
using TileItem = std::vector<TileRange>;

// Columns of a gated product's result that a thread takes as one item.
struct ColumnItem {
  int begin, end;
};

// How a product's weights are cut into items: for few rows, which wait for memory, and for many,
// which wait for arithmetic.
template <class Item>
struct Cuts {
  std::vector<Item> streamed, balanced;

  static constexpr int kStreamedRows = 8;
  const std::vector<Item>& of(int rows) const {
    return rows <= kStreamedRows ? streamed : balanced;
  }
};

// act(gate) * up of the two halves of a product, made tile by tile, so that the product itself
// is never written. The result is quantised, or plain floats.
struct ProductGate {
  ActivationKind activation = ActivationKind::silu;
  int width = 0;  // columns of the result, a multiple of 32
  std::optional<Blocks> quantized;
  View out;
};

// out = x @ W^T + b for one or several matrices side by side.
class Product final : public Instruction {
 public:
  // The result goes to `out`, or through `gate`. `softcap` 0: none.
  Product(std::string name, const Limits& limits, Domain domain, std::vector<ProductPart> parts,
          const ProductInput& x, View out, float softcap, std::optional<ProductGate> gate);
  void run(const Step& step, Worker& worker) override;
  std::size_t scratch_bytes() const override;

 private:
  void run_plain(const Step& step, Worker& worker);
  void run_gated(const Step& step, Worker& worker);
  // The gated result's `columns` for rows [row, row + count), at most gate_columns_ of them.
  void multiply_gated(const Step& step, const Worker& worker, const ColumnItem& columns, int row,
                      int count) const;
  // The product of `tiles` for rows [row, row + count), at out[row of the call][column].
  void multiply(const Step& step, const Worker& worker, const TileRange& tiles, int row, int count,
                float* out, std::ptrdiff_t out_stride) const;

  Domain domain_;
  std::vector<ProductPart> parts_;
  ProductInput x_;
  View out_;
  float softcap_;
  std::optional<ProductGate> gate_;
  Cuts<TileItem> tiles_;      // without a gate
  Cuts<ColumnItem> columns_;  // with one
  int row_block_;         // rows whose input stays in the second-level cache
  int gate_columns_ = 0;  // gated columns that are computed together
};

// out[j] = x_j @ W[ids[j]]^T for the k experts of every row, grouped by expert.
class ExpertProduct final : public Instruction {
 public:
  // x has one row per token, or k where `per_expert`; out has k results of `width` columns a row.
  ExpertProduct(std::string name, const Limits& limits, Domain domain,
                std::vector<ProductPart> parts, const ProductInput& x, bool per_expert, View ids,
                int k, View out, int width);
  void run(const Step& step, Worker& worker) override;
  std::size_t scratch_bytes() const override;

 private:
  Domain domain_;
  int max_rows_;
  std::vector<ProductPart> parts_;
  ProductInput x_;
  bool per_expert_;
  View ids_;
  int k_;
  View out_;
  int width_;
  int n_experts_;
  std::vector<TileItem> items_;  // of each expert
};

// ---- attention

// x of one head, at batch row `row`, rotated; `out` may be x.
void rotate_head(const Step& step, const RopeTable& rope, int row, const float* x, int dim,
                 float* out);

// A norm over each head and a rotation, applied to queries or keys as they are read.
struct HeadTransform {
  std::optional<Vector> norm;
  float eps = 0.0f;
  std::optional<RopeTable> rope;

  // x of one head, at batch row `row`, to `out`.
  void apply(const Step& step, int row, const float* x, int dim, float* out) const;
};

// Appends k and v to the KV cache and attends over it.
class AttentionStep final : public Instruction {
 public:
  AttentionStep(std::string name, Executor& executor, const KvLayer& layer, int n_heads, View q,
                View k, View v, View out, HeadTransform q_transform, HeadTransform k_transform,
                float scale, float softcap, int window);
  void run(const Step& step, Worker& worker) override;
  std::size_t scratch_bytes() const override;

 private:
  struct State {  // a thread's scratch, cut up
    float* q;
    float* max;
    float* sum;
    float* acc;
    std::int32_t* first;
    std::int32_t* last;
    float* kernel;
  };
  // Cuts up `scratch` (nullptr: only adds up); the bytes in all are added to `layout`.
  State lay_out(Layout& layout, std::byte* scratch) const;
  int first_position(int last) const {
    return window_ > 0 && last >= window_ ? last - window_ + 1 : 0;
  }
  void append(const Step& step, int sequence, int row, int kv_head, float* buffer) const;
  // Queries of `count` tokens from `row` on, for the heads of one KV head.
  int load_queries(const Step& step, const State& s, int row, int count, int kv_head) const;
  // The state of rows that have seen nothing.
  void reset(int rows, float* max, float* sum, float* acc) const;
  AttendJob job(const Step& step, const State& s, int rows, int sequence, int kv_head) const;
  void attend_tile(const Step& step, const State& s, const QueryTile& tile, int kv_head) const;
  void write(const Step& step, const float* sum, const float* acc, int row, int count,
             int kv_head) const;

  // Spans that the new token of a context sees.
  int span_count(int context_len) const;
  // Spans of a piece where threads are to share contexts, 0 where not.
  int split(const Step& step) const;
  void attend_split(const Step& step, const Worker& worker, const State& s, int piece_spans);
  // Merges the states of `count` spans of one (sequence, KV head) and writes the result.
  void merge_spans(const Step& step, const State& s, const float* states, int count, int row,
                   int kv_head) const;

  Limits limits_;
  KvLayer layer_;
  int n_heads_;
  int group_;
  int tile_rows_;
  View q_, k_, v_, out_;
  HeadTransform q_transform_, k_transform_;
  float scale_, softcap_;
  int window_;
  std::size_t partial_floats_ = 0;
  std::vector<std::atomic<int>> finished_;  // pieces, of each (sequence, KV head)
};

}  // namespace tidemill
