// Attention: append this step's keys and values, attend, split over the team.
//
// A step in which every sequence has one new token needs no barrier: whoever takes a (sequence,
// KV head) appends its key and value and reads them back. With prompts in the batch all keys and
// values are appended first, then tiles of queries are taken. Contexts that are long for the few
// rows there are get split by spans; whoever finishes the last piece of one merges the spans' states
// in order, so no bit depends on it.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "instructions.h"

namespace tidemill {
namespace {

// Contexts are split where the longest exceeds this fraction of a thread's share of the step: left
// whole, it could keep one thread busy for so much longer than the others.
constexpr int kShareFraction = 4;
// Then pieces per thread, and the most spans of a piece: enough to even out, few enough for what is
// asked for ahead to pay. And the most memory for the spans' states.
constexpr int kPiecesPerThread = 8;
constexpr int kMostPieceSpans = 8;
constexpr std::size_t kMaxPartialFloats = std::size_t{4} << 20;

}  // namespace

void rotate_head(const Step& step, const RopeTable& rope, int row, const float* x, int dim,
                 float* out) {
  const RowKernels& kernels = step.kernels->rows;
  const float* cos = step.row(rope.view, row);
  const auto rotate = rope.interleaved ? kernels.rope_interleaved : kernels.rope_half;
  rotate(x, cos, cos + rope.pairs, rope.pairs, dim, out);
}

void HeadTransform::apply(const Step& step, int row, const float* x, int dim, float* out) const {
  if (norm) {
    step.kernels->rows.rms_norm(x, norm->data(step.weights), dim, eps, out);
    x = out;
  }
  if (rope) {
    rotate_head(step, *rope, row, x, dim, out);
  } else if (x != out) {
    std::memcpy(out, x, static_cast<std::size_t>(dim) * sizeof(float));
  }
}

AttentionStep::AttentionStep(std::string name, Executor& executor, const KvLayer& layer,
                             int n_heads, View q, View k, View v, View out,
                             HeadTransform q_transform, HeadTransform k_transform, float scale,
                             float softcap, int window)
    : Instruction(std::move(name)),
      limits_(executor.limits()),
      layer_(layer),
      n_heads_(n_heads),
      group_(n_heads / layer.layout.n_kv_heads),
      q_(q),
      k_(k),
      v_(v),
      out_(out),
      q_transform_(std::move(q_transform)),
      k_transform_(std::move(k_transform)),
      scale_(scale),
      softcap_(softcap),
      window_(window) {
  const KvLayout& l = layer_.layout;
  if (n_heads < 1 || n_heads % l.n_kv_heads != 0) {
    throw std::invalid_argument("query heads must be a multiple of KV heads");
  }
  tile_rows_ = group_ * executor.query_tile_tokens();
  const int dims[] = {n_heads * l.head_dim, l.n_kv_heads * l.head_dim, l.n_kv_heads * l.head_dim,
                      n_heads * l.head_dim};
  const View* views[] = {&q_, &k_, &v_, &out_};
  for (int i = 0; i < 4; ++i) executor.check_view(*views[i], limits_.max_tokens, dims[i]);
  if (limits_.threads > 1) {
    const std::size_t spans =
        static_cast<std::size_t>(limits_.n_blocks) * static_cast<std::size_t>(limits_.block_size) /
            kSpan + 1;
    const std::size_t state = static_cast<std::size_t>(n_heads_) *
                              static_cast<std::size_t>(l.padded_dim + 2);
    partial_floats_ = std::min(spans * state, std::max(kMaxPartialFloats, 16 * state));
    executor.reserve_partials(partial_floats_);
    finished_ = std::vector<std::atomic<int>>(static_cast<std::size_t>(limits_.max_tokens) *
                                              static_cast<std::size_t>(l.n_kv_heads));
  }
}

std::size_t AttentionStep::scratch_bytes() const {
  Layout layout;
  lay_out(layout, nullptr);
  return layout.total();
}

AttentionStep::State AttentionStep::lay_out(Layout& layout, std::byte* scratch) const {
  const auto rows = static_cast<std::size_t>(tile_rows_);
  const auto dim = static_cast<std::size_t>(layer_.layout.padded_dim);
  const auto take = [&](std::size_t bytes) -> std::byte* {
    const std::size_t offset = layout.add(bytes);
    return scratch == nullptr ? nullptr : scratch + offset;
  };
  State s;
  s.q = reinterpret_cast<float*>(take(rows * dim * 4));
  s.max = reinterpret_cast<float*>(take(rows * 4));
  s.sum = reinterpret_cast<float*>(take(rows * 4));
  s.acc = reinterpret_cast<float*>(take(rows * dim * 4));
  s.first = reinterpret_cast<std::int32_t*>(take(rows * 4));
  s.last = reinterpret_cast<std::int32_t*>(take(rows * 4));
  s.kernel = reinterpret_cast<float*>(take(attend_scratch_floats(layer_.layout.head_dim) * 4));
  return s;
}

void AttentionStep::append(const Step& step, int sequence, int row, int kv_head,
                           float* buffer) const {
  const KvLayout& l = layer_.layout;
  const int position = step.positions[row];
  const auto block =
      static_cast<std::size_t>(step.block_table(sequence)[position / l.block_size]);
  std::byte* head = step.kv + layer_.offset + block * l.block_bytes +
                    static_cast<std::size_t>(kv_head) * l.head_bytes;
  const int column = kv_head * l.head_dim;
  k_transform_.apply(step, row, step.row(k_, row) + column, l.head_dim, buffer);
  step.kernels->attention.append(l, buffer, step.row(v_, row) + column, head,
                                 position % l.block_size);
}

int AttentionStep::load_queries(const Step& step, const State& s, int row, int count,
                                int kv_head) const {
  const KvLayout& l = layer_.layout;
  const int rows = count * group_;
  for (int t = 0; t < count; ++t) {
    const float* heads = step.row(q_, row + t) + kv_head * group_ * l.head_dim;
    const int last = step.positions[row + t];
    for (int h = 0; h < group_; ++h) {
      const int r = t * group_ + h;
      float* q = s.q + r * l.head_dim;
      q_transform_.apply(step, row + t, heads + h * l.head_dim, l.head_dim, q);
      step.kernels->rows.scale(q, scale_, l.head_dim, q);
      s.first[r] = first_position(last);
      s.last[r] = last;
    }
  }
  return rows;
}

void AttentionStep::reset(int rows, float* max, float* sum, float* acc) const {
  std::fill_n(max, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, rows, 0.0f);
  std::fill_n(acc, static_cast<std::ptrdiff_t>(rows) * layer_.layout.padded_dim, 0.0f);
}

AttendJob AttentionStep::job(const Step& step, const State& s, int rows, int sequence,
                             int kv_head) const {
  return {&layer_.layout,
          step.kv + layer_.offset,
          step.block_table(sequence),
          kv_head,
          rows,
          s.q,
          s.first,
          s.last,
          s.first[0] / kSpan,
          s.last[rows - 1] / kSpan + 1,
          s.last[rows - 1] / kSpan + 1,
          softcap_,
          s.max,
          s.sum,
          s.acc,
          s.kernel};
}

void AttentionStep::write(const Step& step, const float* sum, const float* acc, int row,
                          int count, int kv_head) const {
  const KvLayout& l = layer_.layout;
  for (int t = 0; t < count; ++t) {
    float* out = step.row(out_, row + t) + kv_head * group_ * l.head_dim;
    for (int h = 0; h < group_; ++h) {
      const int r = t * group_ + h;
      step.kernels->rows.scale(acc + r * l.padded_dim, 1.0f / sum[r], l.head_dim,
                               out + h * l.head_dim);
    }
  }
}

void AttentionStep::attend_tile(const Step& step, const State& s, const QueryTile& tile,
                                int kv_head) const {
  if (step.single_rows) append(step, tile.sequence, tile.row, kv_head, s.q);
  const int rows = load_queries(step, s, tile.row, tile.count, kv_head);
  reset(rows, s.max, s.sum, s.acc);
  step.kernels->attention.attend(job(step, s, rows, tile.sequence, kv_head));
  write(step, s.sum, s.acc, tile.row, tile.count, kv_head);
}

int AttentionStep::span_count(int context_len) const {
  const int last = context_len - 1;
  return last / kSpan + 1 - first_position(last) / kSpan;
}

int AttentionStep::split(const Step& step) const {
  if (!step.single_rows || limits_.threads == 1) return 0;
  std::int64_t spans = 0;
  int longest = 0;
  for (int s = 0; s < step.n_sequences; ++s) {
    const int count = span_count(step.context_lens[s]);
    spans += count;
    longest = std::max(longest, count);
  }
  const std::int64_t work = spans * layer_.layout.n_kv_heads;
  if (longest < 2 || std::int64_t{longest} * kShareFraction * limits_.threads <= work) return 0;
  const std::size_t floats = static_cast<std::size_t>(spans) * static_cast<std::size_t>(n_heads_) *
                             static_cast<std::size_t>(layer_.layout.padded_dim + 2);
  if (floats > partial_floats_) return 0;
  const std::int64_t even = work / (std::int64_t{kPiecesPerThread} * limits_.threads);
  return static_cast<int>(std::clamp<std::int64_t>(even, 1, kMostPieceSpans));
}

void AttentionStep::attend_split(const Step& step, const Worker& worker, const State& s,
                                 int piece_spans) {
  const KvLayout& l = layer_.layout;
  const auto group = static_cast<std::size_t>(group_);
  const std::size_t state_floats = group * static_cast<std::size_t>(l.padded_dim + 2);
  // The state of a span: [group] max, [group] sum, [group][dim] acc. Those of one (sequence, KV
  // head) follow one another.
  float* states = step.partials;
  int item = worker.rank;  // over the pieces of all (sequence, KV head)
  int passed = 0;
  for (int pair = 0; pair < step.n_sequences * l.n_kv_heads; ++pair) {
    const int sequence = pair / l.n_kv_heads;
    const int kv_head = pair % l.n_kv_heads;
    const int row = step.query_starts[sequence];
    const int count = span_count(step.context_lens[sequence]);
    const int pieces = (count + piece_spans - 1) / piece_spans;
    bool loaded = false;
    for (; item < passed + pieces; item = tickets.take()) {
      // The last piece first: it holds the new token.
      const int piece = pieces - 1 - (item - passed);
      if (piece == pieces - 1) append(step, sequence, row, kv_head, s.kernel);
      if (!loaded) load_queries(step, s, row, 1, kv_head);
      loaded = true;
      const int end = std::min((piece + 1) * piece_spans, count);
      for (int span = piece * piece_spans; span < end; ++span) {
        AttendJob part = job(step, s, group_, sequence, kv_head);
        part.max = states + static_cast<std::size_t>(span) * state_floats;
        part.sum = part.max + group;
        part.acc = part.sum + group;
        reset(group_, part.max, part.sum, part.acc);
        const int first = part.span_begin;
        part.span_begin = first + span;
        part.span_end = first + span + 1;
        part.ahead_end = first + end;
        step.kernels->attention.attend(part);
      }
      std::atomic<int>& finished = finished_[static_cast<std::size_t>(pair)];
      if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces) {
        finished.store(0, std::memory_order_relaxed);
        merge_spans(step, s, states, count, row, kv_head);
      }
    }
    passed += pieces;
    states += static_cast<std::size_t>(count) * state_floats;
  }
}

void AttentionStep::merge_spans(const Step& step, const State& s, const float* states, int count,
                                int row, int kv_head) const {
  const auto group = static_cast<std::size_t>(group_);
  const auto dim = static_cast<std::size_t>(layer_.layout.padded_dim);
  reset(group_, s.max, s.sum, s.acc);
  for (int span = 0; span < count; ++span, states += group * (dim + 2)) {
    for (std::size_t h = 0; h < group; ++h) {
      step.kernels->attention.merge(layer_.layout.padded_dim, states[h], states[group + h],
                                    states + 2 * group + h * dim, s.max + h, s.sum + h,
                                    s.acc + h * dim);
    }
  }
  write(step, s.sum, s.acc, row, 1, kv_head);
}

void AttentionStep::run(const Step& step, Worker& worker) {
  const int n_kv = layer_.layout.n_kv_heads;
  Layout layout;
  const State s = lay_out(layout, worker.scratch);
  if (const int piece_spans = split(step); piece_spans > 0) {
    attend_split(step, worker, s, piece_spans);
    return;
  }
  if (!step.single_rows) {
    const RowRange rows = share_rows(step.n_tokens, worker.rank, worker.team->size());
    int sequence = 0;
    for (int row = rows.begin; row < rows.end; ++row) {
      while (step.query_starts[sequence + 1] <= row) ++sequence;
      for (int h = 0; h < n_kv; ++h) append(step, sequence, row, h, s.q);
    }
    worker.team->barrier();
  }
  const int items = step.n_tiles * n_kv;
  for (int item = worker.rank; item < items; item = tickets.take()) {
    attend_tile(step, s, step.tiles[item / n_kv], item % n_kv);
  }
}

}  // namespace tidemill
