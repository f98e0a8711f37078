// Runs a compiled program: one call is a whole forward step over a mixed batch.
//
// A program arrives as a flat list of instructions over three memories:
//   shared    values that every thread may read, one row per token (or per selected or logit row);
//   replicas  one small copy per thread of quantised activations: in a step of few rows each
//             thread norms and quantises for itself, which is cheaper than meeting at a barrier;
//   scratch   what one thread needs inside one instruction.
// All threads walk the list together. Whoever compiled the program knows which memory each
// instruction touches, and says before which ones the threads must meet (Instruction::barrier).
// Every size is known before anything is allocated.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "arena.h"
#include "attention.h"
#include "kernels.h"
#include "pack.h"
#include "team.h"
#include "tensor_type.h"

namespace tidemill {

// What a row of a value stands for: a token of the batch; one of those that logits or hidden states
// are wanted of; one that logits are wanted of. The logit rows are the first of the selected ones.
enum class Domain : int { tokens, selected, logits };

// A value in shared memory: its first byte and the floats from one row to the next.
struct View {
  std::size_t offset = 0;
  std::ptrdiff_t stride = 0;
};

// Consecutive new tokens of one sequence whose queries are computed together.
struct QueryTile {
  int sequence;
  int row;    // first row in the batch
  int count;  // tokens
};

// The batch as it came in, checked, and the memory that this step works on.
struct Step {
  int n_tokens = 0;
  int n_sequences = 0;
  int n_selected = 0;
  int n_logits = 0;
  const std::int32_t* tokens = nullptr;
  const std::int32_t* positions = nullptr;
  const std::int32_t* query_starts = nullptr;
  const std::int32_t* context_lens = nullptr;
  const std::int32_t* block_tables = nullptr;
  int table_width = 0;
  const std::int32_t* selected_rows = nullptr;  // logit rows, then hidden rows

  bool small = false;        // few rows: threads quantise for themselves
  bool single_rows = false;  // every sequence has one new token
  const QueryTile* tiles = nullptr;
  int n_tiles = 0;

  std::byte* shared = nullptr;
  const std::byte* weights = nullptr;
  std::byte* kv = nullptr;
  float* partials = nullptr;  // per-span attention states of contexts split over threads
  const KernelTable* kernels = nullptr;

  int rows(Domain domain) const {
    return domain == Domain::tokens ? n_tokens : domain == Domain::selected ? n_selected : n_logits;
  }
  float* row(const View& view, int r) const {
    return reinterpret_cast<float*>(shared + view.offset) + r * view.stride;
  }
  const std::int32_t* block_table(int sequence) const {
    return block_tables + static_cast<std::ptrdiff_t>(sequence) * table_width;
  }
};

// One member of the team during a step.
struct Worker {
  int rank;
  Team* team;
  std::byte* replica;
  std::byte* scratch;
};

// The rows of n that `rank` of `size` members takes.
struct RowRange {
  int begin, end;
};
inline RowRange share_rows(int n, int rank, int size) {
  const auto cut = [&](int r) {
    return static_cast<int>(static_cast<std::int64_t>(n) * r / size);
  };
  return {cut(rank), cut(rank + 1)};
}

// What instructions are sized by.
struct Limits {
  int max_tokens = 0;
  int max_logits = 0;
  int small_rows = 0;  // the most rows of a small step
  int threads = 1;
  int n_blocks = 0;
  int block_size = 0;
  KvType kv_type = KvType::f16;

  int rows(Domain domain) const {
    return domain == Domain::tokens     ? max_tokens
           : domain == Domain::selected ? std::max(max_tokens, max_logits)
                                        : max_logits;
  }
};

class Instruction {
 public:
  explicit Instruction(std::string name) : name_(std::move(name)) {}
  virtual ~Instruction() = default;
  Instruction(const Instruction&) = delete;
  Instruction& operator=(const Instruction&) = delete;

  // This member's part of the step. Throws nothing that a valid batch could cause.
  virtual void run(const Step& step, Worker& worker) = 0;
  // Bytes of scratch that one member needs.
  virtual std::size_t scratch_bytes() const { return 0; }

  const std::string& name() const { return name_; }

  std::array<bool, 2> barrier{};  // meet before this one, in a large and in a small step
  Tickets tickets;

 private:
  std::string name_;
};

// A packed weight matrix, or a stack of them (experts), inside the weight memory.
struct Matrix {
  TensorType type;
  int rows, cols, count;
  std::size_t offset;  // of the first
  std::size_t bytes;   // of one

  PackedMatrix view(const std::byte* weights, int index = 0) const {
    return packed_view(type, rows, cols,
                       reinterpret_cast<const std::uint8_t*>(weights + offset) +
                           static_cast<std::size_t>(index) * bytes);
  }
};

// A vector of float32 (a norm's weight, a bias) inside the weight memory.
struct Vector {
  std::size_t offset;
  int size;
  const float* data(const std::byte* weights) const {
    return reinterpret_cast<const float*>(weights + offset);
  }
};

// A matrix whose rows are looked up: as it is stored, straight from the file, or packed where products
// read it as well (tied embeddings).
struct Table {
  TensorType type;
  int rows, cols;
  const std::uint8_t* data = nullptr;  // stored rows; null until loaded
  int matrix = -1;                     // instead: the packed matrix
};

// cos and sin of every token's angles, computed once a step (RopeAngles): rows of [pairs] cos,
// [pairs] sin.
struct RopeTable {
  int pairs = 0;
  bool interleaved = false;
  View view;
};

struct KvLayer {
  KvLayout layout;
  std::size_t offset;
  bool windowed;  // old positions are never read again
};

// Batch arrays as they come from Python; lengths are what the arrays have.
struct BatchArrays {
  const std::int32_t* tokens;
  std::size_t n_tokens;
  const std::int32_t* positions;
  std::size_t n_positions;
  const std::int32_t* query_starts;
  std::size_t n_query_starts;
  const std::int32_t* context_lens;
  std::size_t n_context_lens;
  const std::int32_t* block_tables;
  std::size_t n_tables, table_width;
  const std::int32_t* logit_rows;
  std::size_t n_logit_rows;
  const std::int32_t* hidden_rows;
  std::size_t n_hidden_rows;
};

class Executor {
 public:
  // `shared_bytes` and `replica_bytes` hold the values of the program that is going to be added.
  // `group` is the most query heads that share a KV head.
  Executor(const KernelTable& kernels, const Limits& limits, int vocab_size, int group,
           std::size_t shared_bytes, std::size_t replica_bytes);
  ~Executor();

  // ---- building, before allocate(); each returns an index for later calls
  int add_matrix(TensorType type, int rows, int cols, int count);
  int add_vector(int size);
  int add_table(TensorType type, int rows, int cols);
  // The rows of this table are those of a matrix; it is not loaded then.
  void tie_table(int table, int matrix);
  int add_rope_table(int pairs, bool interleaved, const View& view);
  int add_kv_layer(int n_kv_heads, int head_dim, bool windowed);
  void add(std::unique_ptr<Instruction> instruction, bool barrier_large, bool barrier_small);
  void set_logits(const View& view) { logits_ = view; }
  // The final hidden state of `width` floats, by selected row.
  void set_hidden(const View& view, int width) {
    hidden_ = view;
    hidden_width_ = width;
  }
  // Room for at least `floats` floats at Step::partials, shared by all attention instructions.
  void reserve_partials(std::size_t floats);

  // ---- sizes in bytes, exact
  std::size_t weight_bytes() const { return weight_layout_.total(); }
  std::size_t kv_bytes() const { return kv_layout_.total(); }
  std::size_t scratch_bytes() const;
  // Weights, KV and scratch as allocate() took them; weights that are mapped from a file count.
  std::array<std::size_t, 3> allocated_bytes() const {
    return {mapped_weights_.size() + weights_.size(), kv_.size(), scratch_.size()};
  }

  // ---- loading
  // Before allocate(): the weight memory is this stretch of a file, an image() of an executor with
  // the same matrices and vectors; none of them is loaded then. Throws std::invalid_argument if
  // the file does not have weight_bytes() bytes there.
  void map_weights(int descriptor, std::size_t offset);
  // Takes that back; the weights are to be loaded.
  void unmap_weights();
  // Takes the memory and starts the threads. Throws std::bad_alloc.
  void allocate();
  // The weight memory, weight_bytes() bytes: once all is loaded, what map_weights() takes.
  const std::byte* image() const {
    return mapped_weights_.data() != nullptr ? mapped_weights_.data() : weights_.data();
  }
  // Packs a matrix (or stack) from its stored bytes, all threads together.
  void load_matrix(int matrix, const std::uint8_t* stored);
  void load_vector(int vector, const float* values);
  // The stored bytes of a table, which must stay where they are.
  void load_table(int table, const std::uint8_t* stored);

  // ---- running
  // Runs a step; logits() and hidden() are good until the next call. Throws std::invalid_argument,
  // before anything has changed, if the batch breaks the contract of tidemill.backends.base.Batch.
  void forward(const BatchArrays& batch);
  const float* logits() const;
  std::ptrdiff_t logits_stride() const { return logits_.stride; }
  // The hidden states that the last step was asked for, and how many they are.
  const float* hidden() const;
  int n_hidden() const { return step_.n_selected - step_.n_logits; }
  int hidden_width() const { return hidden_width_; }
  std::ptrdiff_t hidden_stride() const { return hidden_.stride; }
  // Throws std::invalid_argument unless this is a KV block of this executor.
  void check_block(std::int64_t block) const;
  void copy_block(int source, int destination);
  // What a KV block holds in all layers, one after another: kv_block_bytes() bytes.
  std::size_t kv_block_bytes() const;
  void read_block(int block, std::byte* data) const;
  void write_block(int block, const std::byte* data);
  // Gives back the memory that windowed layers have for `count` blocks from `first` on.
  void forget_blocks(int first, int count);

  // Seconds and calls per instruction since profiling was switched on, as the caller's thread saw
  // them (waiting included).
  void set_profiling(bool on);
  struct Timing {
    std::string name;
    double seconds;
  };
  std::vector<Timing> timings() const;

  const char* isa() const { return kernels_.isa; }
  const Limits& limits() const { return limits_; }
  const Matrix& matrix(int index) const { return matrices_.at(static_cast<std::size_t>(index)); }
  const Vector& vector(int index) const { return vectors_.at(static_cast<std::size_t>(index)); }
  const Table& table(int index) const { return tables_.at(static_cast<std::size_t>(index)); }
  const RopeTable& rope_table(int index) const {
    return rope_tables_.at(static_cast<std::size_t>(index));
  }
  const KvLayer& kv_layer(int index) const {
    return kv_layers_.at(static_cast<std::size_t>(index));
  }
  int query_tile_tokens() const { return query_tile_tokens_; }
  // Throws std::invalid_argument unless `rows` rows of `width` floats lie in shared memory.
  void check_view(const View& view, int rows, int width) const;
  // The same of plain bytes in shared memory, and in one thread's replica memory.
  void check_shared(std::size_t offset, std::size_t bytes) const;
  void check_replica(std::size_t offset, std::size_t bytes) const;

 private:
  void check(const BatchArrays& batch) const;
  void prepare(const BatchArrays& batch);

  const KernelTable& kernels_;
  Limits limits_;
  int vocab_size_;
  int group_;              // query heads per KV head, at most
  int query_tile_tokens_;  // at most
  std::size_t shared_values_;
  std::size_t replica_bytes_;
  Layout weight_layout_;
  Layout kv_layout_;
  std::size_t partial_offset_ = 0;
  std::size_t partial_bytes_ = 0;

  std::vector<Matrix> matrices_;
  std::vector<Vector> vectors_;
  std::vector<Table> tables_;
  std::vector<RopeTable> rope_tables_;
  std::vector<KvLayer> kv_layers_;
  std::vector<std::unique_ptr<Instruction>> instructions_;
  View logits_;
  View hidden_;
  int hidden_width_ = 0;

  AlignedBuffer weights_;        // or
  FileMapping mapped_weights_;
  AlignedBuffer kv_;
  AlignedBuffer scratch_;
  std::unique_ptr<Team> team_;
  Step step_;
  std::vector<QueryTile> tiles_;
  std::vector<std::int32_t> selected_rows_;
  bool profiling_ = false;
  std::vector<double> seconds_;
};

}  // namespace tidemill
