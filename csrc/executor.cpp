#include "executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

namespace tidemill {
namespace {

std::string text(long long value) { return std::to_string(value); }

[[noreturn]] void reject(const std::string& message) { throw std::invalid_argument(message); }

// Query rows (tokens times heads of one KV group) that are computed together: enough to reuse
// keys and values from the first-level cache. A step of few tokens has smaller tiles, down to the
// least, so that each thread gets several.
constexpr int kQueryRows = kAttendChunk;
constexpr int kLeastQueryRows = 4 * kAttendRows;
constexpr int kTilesPerThread = 4;

}  // namespace

Executor::Executor(const KernelTable& kernels, const Limits& limits, int vocab_size, int group,
                   std::size_t shared_bytes, std::size_t replica_bytes)
    : kernels_(kernels),
      limits_(limits),
      vocab_size_(vocab_size),
      group_(std::max(1, group)),
      query_tile_tokens_(std::max(1, kQueryRows / group_)),
      shared_values_(shared_bytes),
      replica_bytes_(align_up(replica_bytes)) {
  if (limits.max_tokens < 1 || limits.max_logits < 1 || limits.n_blocks < 1) {
    reject("batch tokens, logit rows and KV blocks must be at least 1");
  }
  const int size = limits.block_size;
  if (size < 8 || size > 256 || (size & (size - 1)) != 0) {
    reject("KV block size " + text(size) + " (a power of two from 8 to 256)");
  }
  if (limits.threads < 1 || limits.threads > Team::kMaxSize) {
    reject("threads must be 1 to " + text(Team::kMaxSize) + ", not " + text(limits.threads));
  }
}

Executor::~Executor() = default;

int Executor::add_matrix(TensorType type, int rows, int cols, int count) {
  if (count < 1) reject("a stack of no matrices");
  if (const char* why = pack_error(type, rows, cols)) reject(why);
  const std::size_t bytes = packed_bytes(type, rows, cols);
  const std::size_t offset =
      weight_layout_.add(checked_mul(bytes, static_cast<std::size_t>(count)));
  matrices_.push_back({type, rows, cols, count, offset, bytes});
  return static_cast<int>(matrices_.size()) - 1;
}

int Executor::add_vector(int size) {
  if (size < 1) reject("a vector of no elements");
  vectors_.push_back({weight_layout_.add(static_cast<std::size_t>(size) * sizeof(float)), size});
  return static_cast<int>(vectors_.size()) - 1;
}

int Executor::add_table(TensorType type, int rows, int cols) {
  if (const char* why = pack_error(type, rows, cols)) reject(why);
  if (rows < vocab_size_) reject("the embedding table has fewer rows than the vocabulary");
  tables_.push_back({type, rows, cols});
  return static_cast<int>(tables_.size()) - 1;
}

void Executor::tie_table(int index, int matrix_index) {
  Table& t = tables_.at(static_cast<std::size_t>(index));
  const Matrix& m = matrix(matrix_index);
  if (m.type != t.type || m.rows != t.rows || m.cols != t.cols || m.count != 1) {
    reject("a table tied to another kind of matrix");
  }
  t.matrix = matrix_index;
}

int Executor::add_rope_table(int pairs, bool interleaved, const View& view) {
  if (pairs < 1 || pairs > kMaxHeadDim) reject("a rotation of no or many pairs");
  check_view(view, limits_.max_tokens, 2 * pairs);
  rope_tables_.push_back({pairs, interleaved, view});
  return static_cast<int>(rope_tables_.size()) - 1;
}

int Executor::add_kv_layer(int n_kv_heads, int head_dim, bool windowed) {
  if (n_kv_heads < 1 || head_dim < 1 || head_dim > kMaxHeadDim) {
    reject("attention with " + text(n_kv_heads) + " KV heads of " + text(head_dim) +
           " dimensions (at most " + text(kMaxHeadDim) + ")");
  }
  const KvLayout layout =
      KvLayout::make(limits_.kv_type, n_kv_heads, head_dim, limits_.block_size);
  const std::size_t offset = kv_layout_.add(
      checked_mul(layout.block_bytes, static_cast<std::size_t>(limits_.n_blocks)));
  kv_layers_.push_back({layout, offset, windowed});
  return static_cast<int>(kv_layers_.size()) - 1;
}

void Executor::add(std::unique_ptr<Instruction> instruction, bool barrier_large,
                   bool barrier_small) {
  instruction->barrier = {barrier_large, barrier_small};
  instructions_.push_back(std::move(instruction));
}

void Executor::reserve_partials(std::size_t floats) {
  partial_bytes_ = std::max(partial_bytes_, align_up(checked_mul(floats, sizeof(float))));
}

std::size_t Executor::scratch_bytes() const {
  std::size_t worker = 0;
  for (const auto& instruction : instructions_) {
    worker = std::max(worker, align_up(instruction->scratch_bytes()));
  }
  return align_up(shared_values_) + partial_bytes_ +
         static_cast<std::size_t>(limits_.threads) * (replica_bytes_ + worker);
}

void Executor::check_view(const View& view, int rows, int width) const {
  const bool fits = view.stride >= width && view.offset % sizeof(float) == 0 &&
                    view.offset <= shared_values_ &&
                    static_cast<std::size_t>(rows - 1) * static_cast<std::size_t>(view.stride) +
                            static_cast<std::size_t>(width) <=
                        (shared_values_ - view.offset) / sizeof(float);
  if (!fits) reject("a value outside of shared memory");
}

void Executor::check_shared(std::size_t offset, std::size_t bytes) const {
  if (offset > shared_values_ || bytes > shared_values_ - offset) {
    reject("a value outside of shared memory");
  }
}

void Executor::check_replica(std::size_t offset, std::size_t bytes) const {
  if (offset > replica_bytes_ || bytes > replica_bytes_ - offset) {
    reject("a value outside of replica memory");
  }
}

void Executor::map_weights(int descriptor, std::size_t offset) {
  if (team_) throw std::logic_error("map_weights() after allocate()");
  mapped_weights_ = FileMapping(descriptor, offset, weight_bytes());
}

void Executor::unmap_weights() {
  if (team_) throw std::logic_error("unmap_weights() after allocate()");
  mapped_weights_ = FileMapping();
}

void Executor::allocate() {
  if (team_) throw std::logic_error("allocate() was called twice");
  check_view(logits_, limits_.rows(Domain::logits), vocab_size_);
  check_view(hidden_, limits_.rows(Domain::selected), hidden_width_);
  if (mapped_weights_.data() == nullptr) weights_ = AlignedBuffer(weight_bytes());
  // Every layer's part is touched from its beginning on, a few kilobytes a token: in huge pages a
  // short sequence would hold two megabytes of each.
  kv_ = AlignedBuffer(kv_bytes(), Pages::small);
  scratch_ = AlignedBuffer(scratch_bytes());
  partial_offset_ = align_up(shared_values_);
  seconds_.assign(instructions_.size(), 0.0);
  tiles_.reserve(static_cast<std::size_t>(limits_.max_tokens));
  selected_rows_.reserve(static_cast<std::size_t>(limits_.rows(Domain::selected)));
  team_ = std::make_unique<Team>(limits_.threads);
}

void Executor::load_matrix(int index, const std::uint8_t* stored) {
  if (!team_) throw std::logic_error("load_matrix() before allocate()");
  if (weights_.data() == nullptr) throw std::logic_error("load_matrix() into mapped weights");
  const Matrix& m = matrix(index);
  const std::size_t stored_bytes =
      static_cast<std::size_t>(m.rows) * row_bytes(m.type, m.cols);
  auto* packed = reinterpret_cast<std::uint8_t*>(weights_.data() + m.offset);
  // Ranges of tiles of about a quarter of a MiB, over the whole stack.
  const int tiles = m.view(weights_.data()).tiles();
  const std::size_t tile_bytes = m.bytes / static_cast<std::size_t>(tiles) + 1;
  const int step = std::max(1, static_cast<int>((std::size_t{1} << 18) / tile_bytes));
  const int ranges = (tiles + step - 1) / step;
  const std::int64_t total = static_cast<std::int64_t>(ranges) * m.count;
  std::atomic<std::int64_t> next{0};
  team_->run([&](int) {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < total;) {
      const auto member = static_cast<std::size_t>(i / ranges);
      const int begin = static_cast<int>(i % ranges) * step;
      pack_tiles(m.type, m.rows, m.cols, stored + member * stored_bytes,
                 packed + member * m.bytes, begin, std::min(begin + step, tiles));
    }
  });
}

void Executor::load_vector(int index, const float* values) {
  if (!team_) throw std::logic_error("load_vector() before allocate()");
  if (weights_.data() == nullptr) throw std::logic_error("load_vector() into mapped weights");
  const Vector& v = vector(index);
  std::memcpy(weights_.data() + v.offset, values,
              static_cast<std::size_t>(v.size) * sizeof(float));
}

void Executor::load_table(int index, const std::uint8_t* stored) {
  tables_.at(static_cast<std::size_t>(index)).data = stored;
}

void Executor::check(const BatchArrays& b) const {
  const auto n = b.n_tokens;
  const auto sequences = b.n_context_lens;
  if (n < 1 || n > static_cast<std::size_t>(limits_.max_tokens)) {
    reject("a batch of " + std::to_string(n) + " tokens; this runner takes 1 to " +
           text(limits_.max_tokens));
  }
  if (b.n_logit_rows > static_cast<std::size_t>(limits_.max_logits)) {
    reject("batch.logit_rows asks for " + std::to_string(b.n_logit_rows) +
           " rows; this runner gives at most " + text(limits_.max_logits));
  }
  const auto most = static_cast<std::size_t>(limits_.rows(Domain::selected));
  if (b.n_hidden_rows > most - b.n_logit_rows) {
    reject("batch.hidden_rows asks for " + std::to_string(b.n_hidden_rows) + " rows beside " +
           std::to_string(b.n_logit_rows) + " logit rows; this runner gives at most " +
           std::to_string(most) + " together");
  }
  if (b.n_positions != n) {
    reject("batch.positions has " + std::to_string(b.n_positions) + " entries for " +
           std::to_string(n) + " tokens");
  }
  if (b.n_query_starts != sequences + 1 || b.n_tables != sequences) {
    reject("batch.query_starts needs one entry more than batch.context_lens, and "
           "batch.block_tables one row for each");
  }
  if (b.query_starts[0] != 0 || b.query_starts[sequences] != static_cast<std::int32_t>(n)) {
    reject("batch.query_starts must go from 0 to " + std::to_string(n));
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (b.tokens[i] < 0 || b.tokens[i] >= vocab_size_) {
      reject("batch.tokens has " + text(b.tokens[i]) + " at row " + std::to_string(i) +
             "; the vocabulary has " + text(vocab_size_) + " tokens");
    }
  }
  const auto check_rows = [&](const char* name, const std::int32_t* rows, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      if (rows[i] < 0 || rows[i] >= static_cast<std::int32_t>(n)) {
        reject("batch." + std::string(name) + " has " + text(rows[i]) + ", the batch rows 0 to " +
               std::to_string(n - 1));
      }
    }
  };
  check_rows("logit_rows", b.logit_rows, b.n_logit_rows);
  check_rows("hidden_rows", b.hidden_rows, b.n_hidden_rows);
  for (std::size_t s = 0; s < sequences; ++s) {
    const std::int32_t begin = b.query_starts[s];
    const std::int32_t end = b.query_starts[s + 1];
    const std::string where = "sequence " + std::to_string(s) + ": ";
    // Rising from 0 to n: no value in between can leave that range unnoticed.
    if (end <= begin || end > static_cast<std::int32_t>(n)) {
      reject(where + "batch.query_starts must rise by at least one");
    }
    const std::int32_t length = b.context_lens[s];
    if (length < end - begin) {
      reject(where + "a context of " + text(length) + " tokens with " + text(end - begin) +
             " new ones");
    }
    for (std::int32_t row = begin; row < end; ++row) {
      if (b.positions[row] != length - end + row) {
        reject(where + "batch.positions must be the last " + text(end - begin) + " of " +
               text(length) + " positions, but row " + text(row) + " has " +
               text(b.positions[row]));
      }
    }
    const std::size_t blocks =
        (static_cast<std::size_t>(length) - 1) / static_cast<std::size_t>(limits_.block_size) + 1;
    if (blocks > b.table_width) {
      reject(where + text(length) + " tokens need " + std::to_string(blocks) +
             " KV blocks, batch.block_tables has " + std::to_string(b.table_width));
    }
    const std::int32_t* table = b.block_tables + s * b.table_width;
    for (std::size_t i = 0; i < blocks; ++i) {
      if (table[i] < 0 || table[i] >= limits_.n_blocks) {
        reject(where + "batch.block_tables has " + text(table[i]) + " where a KV block of 0 to " +
               text(limits_.n_blocks - 1) + " is needed");
      }
    }
  }
}

void Executor::prepare(const BatchArrays& b) {
  step_.n_tokens = static_cast<int>(b.n_tokens);
  step_.n_sequences = static_cast<int>(b.n_context_lens);
  selected_rows_.assign(b.logit_rows, b.logit_rows + b.n_logit_rows);
  selected_rows_.insert(selected_rows_.end(), b.hidden_rows, b.hidden_rows + b.n_hidden_rows);
  step_.n_selected = static_cast<int>(selected_rows_.size());
  step_.n_logits = static_cast<int>(b.n_logit_rows);
  step_.tokens = b.tokens;
  step_.positions = b.positions;
  step_.query_starts = b.query_starts;
  step_.context_lens = b.context_lens;
  step_.block_tables = b.block_tables;
  step_.table_width = static_cast<int>(b.table_width);
  step_.selected_rows = selected_rows_.data();
  step_.small = std::max(step_.n_tokens, step_.n_selected) <= limits_.small_rows;
  step_.single_rows = step_.n_tokens == step_.n_sequences;
  step_.shared = scratch_.data();
  step_.weights = image();
  step_.kv = kv_.data();
  step_.partials = reinterpret_cast<float*>(scratch_.data() + partial_offset_);
  step_.kernels = &kernels_;

  const int least = std::max(1, kLeastQueryRows / group_);
  const int even = step_.n_tokens / (kTilesPerThread * limits_.threads);
  const int tile_tokens = std::min(query_tile_tokens_, std::max(least, even));
  tiles_.clear();
  for (int s = 0; s < step_.n_sequences; ++s) {
    const int end = b.query_starts[s + 1];
    for (int row = b.query_starts[s]; row < end; row += tile_tokens) {
      tiles_.push_back({s, row, std::min(tile_tokens, end - row)});
    }
  }
  // The longest contexts first, so that the last tiles to be taken are short ones.
  if (!step_.single_rows) {
    std::stable_sort(tiles_.begin(), tiles_.end(), [&](const QueryTile& x, const QueryTile& y) {
      const auto work = [&](const QueryTile& t) {
        return static_cast<std::int64_t>(b.positions[t.row] + 1) * t.count;
      };
      return work(x) > work(y);
    });
  }
  step_.tiles = tiles_.data();
  step_.n_tiles = static_cast<int>(tiles_.size());
}

void Executor::forward(const BatchArrays& batch) {
  if (!team_) throw std::logic_error("forward() before allocate()");
  for (const Table& table : tables_) {
    if (table.data == nullptr && table.matrix < 0) {
      throw std::logic_error("forward() before load_table()");
    }
  }
  check(batch);
  prepare(batch);
  for (const auto& instruction : instructions_) instruction->tickets.reset(limits_.threads);

  const std::size_t worker_offset = partial_offset_ + partial_bytes_;
  const std::size_t per_worker =
      (scratch_.size() - worker_offset) / static_cast<std::size_t>(limits_.threads);
  const int mode = step_.small ? 1 : 0;
  team_->run([&](int rank) {
    std::byte* mine = scratch_.data() + worker_offset + per_worker * static_cast<std::size_t>(rank);
    Worker worker{rank, team_.get(), mine, mine + replica_bytes_};
    const bool timed = profiling_ && rank == 0;
    auto before = std::chrono::steady_clock::time_point();
    if (timed) before = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < instructions_.size(); ++i) {
      Instruction& instruction = *instructions_[i];
      if (instruction.barrier[static_cast<std::size_t>(mode)]) team_->barrier();
      instruction.run(step_, worker);
      if (timed) {
        const auto now = std::chrono::steady_clock::now();
        seconds_[i] += std::chrono::duration<double>(now - before).count();
        before = now;
      }
    }
  });
}

const float* Executor::logits() const {
  return reinterpret_cast<const float*>(scratch_.data() + logits_.offset);
}

const float* Executor::hidden() const {
  return reinterpret_cast<const float*>(scratch_.data() + hidden_.offset) +
         step_.n_logits * hidden_.stride;
}

void Executor::check_block(std::int64_t block) const {
  if (block < 0 || block >= limits_.n_blocks) {
    reject("KV block " + text(block) + " is outside 0 to " + text(limits_.n_blocks - 1));
  }
}

void Executor::copy_block(int source, int destination) {
  if (source == destination) return;
  for (const KvLayer& layer : kv_layers_) {
    std::byte* base = kv_.data() + layer.offset;
    std::memcpy(base + static_cast<std::size_t>(destination) * layer.layout.block_bytes,
                base + static_cast<std::size_t>(source) * layer.layout.block_bytes,
                layer.layout.block_bytes);
  }
}

std::size_t Executor::kv_block_bytes() const {
  std::size_t total = 0;
  for (const KvLayer& layer : kv_layers_) total += layer.layout.block_bytes;
  return total;
}

void Executor::read_block(int block, std::byte* data) const {
  for (const KvLayer& layer : kv_layers_) {
    const std::size_t bytes = layer.layout.block_bytes;
    std::memcpy(data, kv_.data() + layer.offset + static_cast<std::size_t>(block) * bytes, bytes);
    data += bytes;
  }
}

void Executor::write_block(int block, const std::byte* data) {
  for (const KvLayer& layer : kv_layers_) {
    const std::size_t bytes = layer.layout.block_bytes;
    std::memcpy(kv_.data() + layer.offset + static_cast<std::size_t>(block) * bytes, data, bytes);
    data += bytes;
  }
}

void Executor::forget_blocks(int first, int count) {
  for (const KvLayer& layer : kv_layers_) {
    if (!layer.windowed) continue;
    const std::size_t bytes = layer.layout.block_bytes;
    kv_.release(layer.offset + static_cast<std::size_t>(first) * bytes,
                static_cast<std::size_t>(count) * bytes);
  }
}

void Executor::set_profiling(bool on) {
  profiling_ = on;
  std::fill(seconds_.begin(), seconds_.end(), 0.0);
}

std::vector<Executor::Timing> Executor::timings() const {
  std::vector<Timing> result;
  for (std::size_t i = 0; i < instructions_.size(); ++i) {
    result.push_back({instructions_[i]->name(), i < seconds_.size() ? seconds_[i] : 0.0});
  }
  return result;
}

}  // namespace tidemill
