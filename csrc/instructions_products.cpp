// Products of activations and packed weights, split over the team.
#include <algorithm>

#include "instructions.h"
#include "matmul.h"

namespace tidemill {
namespace {

// The weights of one item for many rows: small enough to balance over the team and to stay in the
// second-level cache, large enough that taking an item costs nothing.
constexpr std::size_t kMaxItemBytes = 96 << 10;
constexpr std::size_t kItemsPerThread = 8;
// The input rows, and the gated intermediate, that share the second-level cache with them.
constexpr std::size_t kRowBlockBytes = 192 << 10;
constexpr std::size_t kGateBytes = 128 << 10;
constexpr int kRowMultiple = 8;
// For few rows: the part of each thread's share that the team evens out, and the items that it is
// cut into.
constexpr std::size_t kTailFraction = 16;
constexpr std::size_t kTailItemsPerThread = 2;

// Bytes of weights in one item of a product that reads `total` bytes of them.
std::size_t item_bytes(std::size_t total, int threads) {
  return std::min(total / (kItemsPerThread * static_cast<std::size_t>(threads)) + 1,
                  kMaxItemBytes);
}

// Cuts [0, total) into items for few rows: a long stretch for each thread, since every jump costs a
// wait for memory, then short ones that even out who is done when.
std::vector<std::size_t> stream_cuts(std::size_t total, int threads) {
  const auto team = static_cast<std::size_t>(threads);
  const std::size_t stretch = total / team - total / team / kTailFraction;
  std::vector<std::size_t> cuts;
  for (std::size_t rank = 0; rank <= team; ++rank) cuts.push_back(rank * stretch);
  const std::size_t tail = total - team * stretch;
  const std::size_t items = kTailItemsPerThread * team;
  for (std::size_t i = 1; i <= items; ++i) cuts.push_back(team * stretch + tail * i / items);
  return cuts;
}

// The same for many rows: items of `size`.
std::vector<std::size_t> even_cuts(std::size_t total, std::size_t size) {
  std::vector<std::size_t> cuts;
  for (std::size_t cut = 0; cut < total; cut += size) cuts.push_back(cut);
  cuts.push_back(total);
  return cuts;
}

// Items in the order in which a team that takes them in turn reads one stretch of them with each
// thread: a jump to other weights costs a wait for memory.
template <class Item>
std::vector<Item> in_turns(std::vector<Item> items, int threads) {
  const std::size_t team = static_cast<std::size_t>(threads);
  std::vector<Item> ordered;
  for (std::size_t turn = 0; ordered.size() < items.size(); ++turn) {
    for (std::size_t rank = 0; rank < team; ++rank) {
      const std::size_t item = items.size() * rank / team + turn;
      if (item < items.size() * (rank + 1) / team) ordered.push_back(std::move(items[item]));
    }
  }
  return ordered;
}

std::size_t total_bytes(const std::vector<ProductPart>& parts) {
  std::size_t total = 0;
  for (const ProductPart& part : parts) total += part.matrix.bytes;
  return total;
}

// The tiles that begin between one of the `cuts` and the next, in bytes of all parts in a row.
std::vector<TileItem> cut_tiles(const std::vector<ProductPart>& parts,
                                const std::vector<std::size_t>& cuts) {
  std::vector<TileItem> items;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    TileItem item;
    std::size_t start = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const Matrix& matrix = parts[p].matrix;
      const std::size_t tile = packed_tile_bytes(matrix.type, matrix.cols);
      const auto tiles_before = [&](std::size_t cut) {
        const std::size_t within = std::clamp(cut, start, start + matrix.bytes) - start;
        const int tiles = (matrix.rows + kTileRows - 1) / kTileRows;
        return std::min(static_cast<int>((within + tile - 1) / tile), tiles);
      };
      const int begin = tiles_before(cuts[i]);
      const int end = tiles_before(cuts[i + 1]);
      if (begin < end) item.push_back({static_cast<int>(p), begin, end});
      start += matrix.bytes;
    }
    if (!item.empty()) items.push_back(std::move(item));
  }
  return items;
}

// Columns of a gated product's result, of cuts in groups.
std::vector<ColumnItem> cut_columns(const std::vector<std::size_t>& cuts) {
  std::vector<ColumnItem> items;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const auto column = [](std::size_t group) { return static_cast<int>(group) * kGroup; };
    if (cuts[i] < cuts[i + 1]) items.push_back({column(cuts[i]), column(cuts[i + 1])});
  }
  return items;
}

// Rows that fit `bytes`, a whole number of the kernels' tiles.
int rows_within(std::size_t bytes, std::size_t row) {
  const std::size_t fit = bytes / std::max<std::size_t>(row, 1);
  const int rows = static_cast<int>(std::min<std::size_t>(fit, 1 << 20));
  return std::max(kRowMultiple, rows / kRowMultiple * kRowMultiple);
}

// n rows in as few blocks of at most `most` rows as do, all of nearly the same size: a short last
// block would use its weights for a few rows only.
struct RowBlocks {
  int count, rows;

  RowBlocks(int n, int most) : count((n + most - 1) / most) {
    const int even = count == 0 ? n : (n + count - 1) / count;
    rows = (even + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
  }
};

std::size_t input_row_bytes(const Matrix& matrix) {
  return needs_quantized_input(matrix.type)
             ? static_cast<std::size_t>(activation_blocks(matrix.cols)) * sizeof(ActivationBlock)
             : static_cast<std::size_t>(matrix.cols) * sizeof(float);
}

}  // namespace

Product::Product(std::string name, const Limits& limits, Domain domain,
                 std::vector<ProductPart> parts, const ProductInput& x, View out, float softcap,
                 std::optional<ProductGate> gate)
    : Instruction(std::move(name)),
      domain_(domain),
      parts_(std::move(parts)),
      x_(x),
      out_(out),
      softcap_(softcap),
      gate_(gate) {
  const std::size_t total = total_bytes(parts_);
  std::size_t row = 0;
  for (const ProductPart& part : parts_) row = std::max(row, input_row_bytes(part.matrix));
  const std::size_t bytes = item_bytes(total, limits.threads);
  row_block_ = rows_within(kRowBlockBytes, row);
  if (gate_) {
    // Columns of the gate and the same of the other half make an item.
    const std::size_t tile = total / static_cast<std::size_t>(2 * gate_->width / kTileRows);
    const int groups = std::max(1, static_cast<int>(bytes / (2 * tile)) * kTileRows / kGroup);
    gate_columns_ = std::min({groups * kGroup, 128, gate_->width});
    const std::size_t gate_row = static_cast<std::size_t>(2 * gate_columns_) * sizeof(float);
    row_block_ = std::min(row_block_, rows_within(kGateBytes, gate_row));
    const auto n_groups = static_cast<std::size_t>(gate_->width / kGroup);
    columns_ = {cut_columns(stream_cuts(n_groups, limits.threads)),
                in_turns(cut_columns(even_cuts(n_groups,
                                               static_cast<std::size_t>(gate_columns_ / kGroup))),
                         limits.threads)};
  } else {
    tiles_ = {cut_tiles(parts_, stream_cuts(total, limits.threads)),
              in_turns(cut_tiles(parts_, even_cuts(total, bytes)), limits.threads)};
  }
}

std::size_t Product::scratch_bytes() const {
  if (!gate_) return 0;
  // Both halves for a block of rows, and one row of results on its way to being quantised.
  const int floats = row_block_ * 2 * gate_columns_ + gate_columns_;
  return static_cast<std::size_t>(floats) * sizeof(float);
}

void Product::multiply(const Step& step, const Worker& worker, const TileRange& tiles,
                       int row, int count, float* out, std::ptrdiff_t out_stride) const {
  const ProductPart& part = parts_[static_cast<std::size_t>(tiles.part)];
  Matmul product;
  product.weights = part.matrix.view(step.weights);
  product.tile_begin = tiles.begin;
  product.tile_end = tiles.end;
  product.tokens = count;
  if (needs_quantized_input(part.matrix.type)) {
    product.blocks = x_.quantized->row(step, worker, row);
    product.x_stride = x_.quantized->per_row;
  } else if (x_.gather) {
    product.floats = step.row(x_.floats, 0);
    product.x_stride = x_.floats.stride;
    product.x_rows = step.selected_rows + row;
  } else {
    product.floats = step.row(x_.floats, row);
    product.x_stride = x_.floats.stride;
  }
  product.out = out;
  product.out_stride = out_stride;
  product.bias = part.bias ? part.bias->data(step.weights) : nullptr;
  matmul(*step.kernels, product);
}

void Product::run(const Step& step, Worker& worker) {
  if (gate_) {
    run_gated(step, worker);
  } else {
    run_plain(step, worker);
  }
}

void Product::run_plain(const Step& step, Worker& worker) {
  const int n = step.rows(domain_);
  const RowBlocks blocks(n, row_block_);
  const std::vector<TileItem>& cut = tiles_.of(n);
  const int n_cut = static_cast<int>(cut.size());
  const int items = blocks.count * n_cut;
  for (int item = worker.rank; item < items; item = tickets.take()) {
    const int row = item / n_cut * blocks.rows;
    const int count = std::min(blocks.rows, n - row);
    for (const TileRange& tiles : cut[static_cast<std::size_t>(item % n_cut)]) {
      const ProductPart& part = parts_[static_cast<std::size_t>(tiles.part)];
      float* out = step.row(out_, row) + part.column;
      multiply(step, worker, tiles, row, count, out, out_.stride);
      if (softcap_ == 0.0f) continue;
      const int begin = tiles.begin * kTileRows;
      const int width = std::min(tiles.end * kTileRows, part.matrix.rows) - begin;
      for (int r = 0; r < count; ++r) {
        float* values = out + r * out_.stride + begin;
        step.kernels->rows.softcap(values, softcap_, width, values);
      }
    }
  }
}

void Product::run_gated(const Step& step, Worker& worker) {
  const int n = step.rows(domain_);
  const RowBlocks blocks(n, row_block_);
  const std::vector<ColumnItem>& cut = columns_.of(n);
  const int n_cut = static_cast<int>(cut.size());
  const int items = blocks.count * n_cut;
  for (int item = worker.rank; item < items; item = tickets.take()) {
    const int row = item / n_cut * blocks.rows;
    const int count = std::min(blocks.rows, n - row);
    const ColumnItem& columns = cut[static_cast<std::size_t>(item % n_cut)];
    for (int begin = columns.begin; begin < columns.end; begin += gate_columns_) {
      const int width = std::min(gate_columns_, columns.end - begin);
      multiply_gated(step, worker, {begin, begin + width}, row, count);
    }
  }
}

void Product::multiply_gated(const Step& step, const Worker& worker, const ColumnItem& columns,
                             int row, int count) const {
  const int width = columns.end - columns.begin;
  auto* both = reinterpret_cast<float*>(worker.scratch);
  const std::ptrdiff_t stride = 2 * gate_columns_;
  float* result = both + row_block_ * stride;
  for (int half = 0; half < 2; ++half) {
    // The half's columns within the one matrix that holds both, or within the second one.
    const bool is_whole = parts_.size() == 1;
    const int first = (is_whole && half == 1 ? gate_->width : 0) + columns.begin;
    const TileRange tiles = {is_whole ? 0 : half, first / kTileRows, (first + width) / kTileRows};
    multiply(step, worker, tiles, row, count, both + half * gate_columns_ - first, stride);
  }
  for (int r = 0; r < count; ++r) {
    const float* gate = both + r * stride;
    float* out = gate_->quantized ? result : step.row(gate_->out, row + r) + columns.begin;
    step.kernels->rows.gated[static_cast<int>(gate_->activation)](gate, gate + gate_columns_,
                                                                  width, out);
    if (gate_->quantized) {
      step.kernels->matmul.quantize(
          out, width, gate_->quantized->row(step, worker, row + r) + columns.begin / kGroup);
    }
  }
}

ExpertProduct::ExpertProduct(std::string name, const Limits& limits, Domain domain,
                             std::vector<ProductPart> parts, const ProductInput& x,
                             bool per_expert, View ids, int k, View out, int width)
    : Instruction(std::move(name)),
      domain_(domain),
      max_rows_(limits.rows(domain)),
      parts_(std::move(parts)),
      x_(x),
      per_expert_(per_expert),
      ids_(ids),
      k_(k),
      out_(out),
      width_(width),
      n_experts_(parts_.at(0).matrix.count) {
  const std::size_t total = total_bytes(parts_);
  // A step of one token has k experts to share out.
  const std::size_t bytes = item_bytes(total * static_cast<std::size_t>(k), limits.threads);
  items_ = cut_tiles(parts_, even_cuts(total, bytes));
}

std::size_t ExpertProduct::scratch_bytes() const {
  const auto pairs = static_cast<std::size_t>(max_rows_) * static_cast<std::size_t>(k_);
  return (static_cast<std::size_t>(n_experts_) * 2 + 1 + 2 * pairs) * sizeof(std::int32_t);
}

void ExpertProduct::run(const Step& step, Worker& worker) {
  // Every thread sorts the (row, choice) pairs by expert for itself: a few microseconds.
  const int n = step.rows(domain_);
  const int pairs = n * k_;
  auto* start = reinterpret_cast<std::int32_t*>(worker.scratch);  // [experts + 1]
  std::int32_t* used = start + n_experts_ + 1;                    // experts that have pairs
  std::int32_t* x_rows = used + n_experts_;
  std::int32_t* out_rows = x_rows + pairs;
  std::fill(start, start + n_experts_ + 1, 0);
  const auto expert_of = [&](int row, int j) {
    return reinterpret_cast<const std::int32_t*>(step.row(ids_, row))[j];
  };
  for (int r = 0; r < n; ++r) {
    for (int j = 0; j < k_; ++j) ++start[expert_of(r, j) + 1];
  }
  int n_used = 0;
  for (int e = 0; e < n_experts_; ++e) {
    if (start[e + 1] > 0) used[n_used++] = e;
    start[e + 1] += start[e];
  }
  for (int r = 0; r < n; ++r) {
    for (int j = 0; j < k_; ++j) {
      const int at = start[expert_of(r, j)]++;
      out_rows[at] = r * k_ + j;
      const int source = x_.gather ? step.selected_rows[r] : r;
      x_rows[at] = per_expert_ ? source * k_ + j : source;
    }
  }
  // start[e] is now where expert e ends.

  const int n_cut = static_cast<int>(items_.size());
  const int items = n_used * n_cut;
  for (int item = worker.rank; item < items; item = tickets.take()) {
    const int expert = used[item / n_cut];
    const int begin = expert == 0 ? 0 : start[expert - 1];
    for (const TileRange& tiles : items_[static_cast<std::size_t>(item % n_cut)]) {
      const ProductPart& part = parts_[static_cast<std::size_t>(tiles.part)];
      Matmul product;
      product.weights = part.matrix.view(step.weights, expert);
      product.tile_begin = tiles.begin;
      product.tile_end = tiles.end;
      product.tokens = start[expert] - begin;
      if (needs_quantized_input(part.matrix.type)) {
        product.blocks = x_.quantized->row(step, worker, 0);
        product.x_stride = per_expert_ ? x_.quantized->per_row / k_ : x_.quantized->per_row;
      } else {
        product.floats = step.row(x_.floats, 0);
        product.x_stride = per_expert_ ? x_.floats.stride / k_ : x_.floats.stride;
      }
      product.x_rows = x_rows + begin;
      product.out = step.row(out_, 0) + part.column;
      product.out_stride = width_;
      product.out_rows = out_rows + begin;
      matmul(*step.kernels, product);
    }
  }
}

}  // namespace tidemill
