// Attention: append this step's keys and values, attend, split over the team.
//
// A step in which every sequence has one new token needs no barrier: whoever takes a (sequence,
// KV head) appends its key and value and reads them back. With prompts in the batch all keys and
// values are appended first, then tiles of queries are taken. Contexts that are long for the few
// rows there are get split by spans; the spans' states meet in order, so no bit depends on it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "instructions.h"

namespace tidemill {
namespace {

// Items per thread below which the spans of one context are shared out.
constexpr int kFewItems = 4;
// Spans of one item then; and the most memory for their states.
constexpr int kSplitSpans = 4;
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
  std::fill_n(s.max, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum, rows, 0.0f);
  std::fill_n(s.acc, static_cast<std::ptrdiff_t>(rows) * l.padded_dim, 0.0f);
  return rows;
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
  step.kernels->attention.attend(job(step, s, rows, tile.sequence, kv_head));
  write(step, s.sum, s.acc, tile.row, tile.count, kv_head);
}

bool AttentionStep::split(const Step& step) const {
  const int n_kv = layer_.layout.n_kv_heads;
  if (!step.single_rows || limits_.threads == 1 ||
      step.n_sequences * n_kv >= kFewItems * limits_.threads) {
    return false;
  }
  std::size_t spans = 0;
  int longest = 0;
  for (int s = 0; s < step.n_sequences; ++s) {
    const int last = step.context_lens[s] - 1;
    const int count = last / kSpan + 1 - first_position(last) / kSpan;
    spans += static_cast<std::size_t>(count);
    longest = std::max(longest, count);
  }
  const std::size_t floats = spans * static_cast<std::size_t>(n_heads_) *
                             static_cast<std::size_t>(layer_.layout.padded_dim + 2);
  return longest >= 2 * kSplitSpans && floats <= partial_floats_;
}

void AttentionStep::attend_split(const Step& step, Worker& worker, const State& s) {
  const KvLayout& l = layer_.layout;
  const std::size_t head_floats = static_cast<std::size_t>(l.padded_dim + 2);
  const std::size_t state_floats = static_cast<std::size_t>(group_) * head_floats;
  // The state of one span of one (sequence, KV head): [group] max, [group] sum, [group][dim] acc.
  const auto partial = [&](std::size_t first_state, int span) {
    return step.partials + (first_state + static_cast<std::size_t>(span)) * state_floats;
  };
  const auto bytes = [](std::size_t floats) { return floats * sizeof(float); };
  const auto group = static_cast<std::size_t>(group_);
  const std::size_t acc_floats = group * static_cast<std::size_t>(l.padded_dim);

  const auto each_head = [&](auto&& visit) {
    std::size_t states = 0;
    for (int sequence = 0; sequence < step.n_sequences; ++sequence) {
      const int last = step.context_lens[sequence] - 1;
      const int begin = first_position(last) / kSpan;
      const int count = last / kSpan + 1 - begin;
      for (int kv_head = 0; kv_head < l.n_kv_heads; ++kv_head) {
        visit(sequence, kv_head, begin, count, states);
        states += static_cast<std::size_t>(count);
      }
    }
  };

  int item = worker.rank;
  int passed = 0;
  each_head([&](int sequence, int kv_head, int begin, int count, std::size_t states) {
    const int pieces = (count + kSplitSpans - 1) / kSplitSpans;
    for (; item < passed + pieces; item = tickets.take()) {
      // The last piece first: it holds the new token.
      const int piece = pieces - 1 - (item - passed);
      const int row = step.query_starts[sequence];
      if (piece == pieces - 1) append(step, sequence, row, kv_head, s.q);
      const int rows = load_queries(step, s, row, 1, kv_head);
      for (int span = piece * kSplitSpans; span < std::min((piece + 1) * kSplitSpans, count);
           ++span) {
        AttendJob part = job(step, s, rows, sequence, kv_head);
        float* to = partial(states, span);
        part.max = to;
        part.sum = to + group;
        part.acc = to + 2 * group;
        std::memcpy(part.max, s.max, bytes(group));
        std::memcpy(part.sum, s.sum, bytes(group));
        std::memcpy(part.acc, s.acc, bytes(acc_floats));
        part.span_begin = begin + span;
        part.span_end = begin + span + 1;
        step.kernels->attention.attend(part);
      }
    }
    passed += pieces;
  });
  worker.team->barrier();

  int head = 0;
  each_head([&](int sequence, int kv_head, int, int count, std::size_t states) {
    if (head++ % worker.team->size() != worker.rank) return;
    std::fill_n(s.max, group, -std::numeric_limits<float>::infinity());
    std::fill_n(s.sum, group, 0.0f);
    std::fill_n(s.acc, acc_floats, 0.0f);
    for (int span = 0; span < count; ++span) {
      const float* from = partial(states, span);
      for (std::size_t h = 0; h < group; ++h) {
        const std::size_t at = h * static_cast<std::size_t>(l.padded_dim);
        step.kernels->attention.merge(l.padded_dim, from[h], from[group + h],
                                      from + 2 * group + at, s.max + h, s.sum + h, s.acc + at);
      }
    }
    write(step, s.sum, s.acc, step.query_starts[sequence], 1, kv_head);
  });
}

void AttentionStep::run(const Step& step, Worker& worker) {
  const int n_kv = layer_.layout.n_kv_heads;
  Layout layout;
  const State s = lay_out(layout, worker.scratch);
  if (split(step)) {
    attend_split(step, worker, s);
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
