// Attention over paged KV blocks. attention.h describes the layout and the order of summation;
// see kernels.h for the rules of this file.
#pragma once

#include <type_traits>

#include "attention.h"
#include "attention_append.inl.h"
#include "attention_read.inl.h"
#include "simd.h"
#include "vmath.inl.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

// ---- scores

// 16 keys, their scales of the first group of dimensions (q8_0), and what is to be asked for while
// they are read (kAhead): values, and keys unless null. Whatever is read asks for as much of what
// comes later, a row at a time, so that the memory is never idle and never flooded.
struct KeyTile {
  const std::byte* data;
  const std::uint16_t* scales = nullptr;
  const std::byte* ahead = nullptr;
  const std::byte* ahead_keys = nullptr;
};

// Where a tile finds the factors of its rows. They are loaded anew for each tile where registers
// cannot hold them beside the sums; the compiler would rather keep sums in memory.
template <int kRows, int kTiles>
TIDEMILL_INLINE const float* row_factors(const float* p) {
  if constexpr (kTiles > 1 && kRows > kKeptFactors) asm volatile("" : "+r"(p));
  return p;
}

// Scores of kRows rows against kTiles tiles of 16 keys: scores[r][tile * 16 ..].
template <class Kv, int kRows, int kTiles, bool kAhead = false>
TIDEMILL_INLINE void score_tiles(const float* q, int dim, const KeyTile (&keys)[kTiles],
                                 int scale_stride, float* scores) {
  f32x16 acc[kRows][kTiles];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) acc[r][t] = f32_zero();
  }
  const auto run = [&](int begin, int end, auto&& convert) {
    for (int d = begin; d < end; ++d) {
      // A tile at a time: all keys at once leave no register for the queries.
#pragma GCC unroll 8
      for (int t = 0; t < kTiles; ++t) {
        const int at = d * kKeyTile * Kv::kBytes;
        const f32x16 key = convert(Kv::load(keys[t].data + at), t);
        if constexpr (kAhead) {
          prefetch(keys[t].ahead + at);
          if (keys[t].ahead_keys != nullptr) prefetch(keys[t].ahead_keys + at);
        }
        const float* factors = row_factors<kRows, kTiles>(q + d);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          acc[r][t] = fma(f32_splat(factors[r * dim]), key, acc[r][t]);
        }
      }
    }
  };
  if constexpr (Kv::kType == KvType::q8_0) {
    for (int d = 0; d < dim; d += kKvGroup) {
      f32x16 scale[kTiles];
#pragma GCC unroll 8
      for (int t = 0; t < kTiles; ++t) {
        scale[t] = f32_load_f16(keys[t].scales + d / kKvGroup * scale_stride);
      }
      run(d, dim - d < kKvGroup ? dim : d + kKvGroup,
          [&](f32x16 key, int t) { return key * scale[t]; });
    }
  } else {
    run(0, dim, [](f32x16 key, int) { return key; });
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) f32_store(scores + r * kSpan + t * kKeyTile, acc[r][t]);
  }
}

// Tiles (of keys, or of 16 value dimensions) that a kernel of so many rows takes at once: enough
// independent sums to hide the latency of fma, few enough to stay in registers.
constexpr int tiles_at_once(int rows) {
  return rows * 4 <= kAttendSums ? 4 : rows * 2 <= kAttendSums ? 2 : 1;
}
constexpr int kManyTiles = tiles_at_once(kAttendRows);
static_assert(kManyTiles <= kAttendTiles);

// f(std::integral_constant<int, rows>) for 1 <= rows <= kAttendRows.
template <class F>
TIDEMILL_INLINE void with_rows(int rows, F&& f) {
  switch (rows) {
    case 1: f(std::integral_constant<int, 1>()); break;
    case 2: f(std::integral_constant<int, 2>()); break;
    case 3: f(std::integral_constant<int, 3>()); break;
    case 4: f(std::integral_constant<int, 4>()); break;
    case 5: f(std::integral_constant<int, 5>()); break;
    case 6: f(std::integral_constant<int, 6>()); break;
    default: break;
  }
  static_assert(kAttendRows == 6);
}

// ---- softmax

// Rows of a job that share a micro kernel, and what any of them sees of the span at hand.
struct RowGroup {
  int row, count;
  int begin, end;

  RowGroup(const AttendJob& job, int row_, int count_, int span)
      : row(row_), count(count_), begin(span + kSpan), end(span) {
    for (int r = row; r < row + count; ++r) {
      begin = job.first[r] < begin ? job.first[r] : begin;
      end = job.last[r] + 1 > end ? job.last[r] + 1 : end;
    }
    begin = begin < span ? span : begin;
    end = end > span + kSpan ? span + kSpan : end;
  }
  RowGroup() = default;
  bool empty() const { return begin >= end; }
};

// How a running state of maximum `old` and a span of maximum `part` are scaled when they meet, lane
// by lane.
struct MergeFactors {
  f32x16 largest, keep, take;
  TIDEMILL_INLINE MergeFactors(f32x16 old, f32x16 part)
      : largest(max(old, part)),
        keep(exp2_of_negative(old - largest)),
        take(exp2_of_negative(part - largest)) {}
};

// Scores of the group's rows to weights; the rows' maximum and sum are brought up to date. keep and
// take [count]: the factors of what the rows have accumulated and of what the span adds.
void softmax_rows(const AttendJob& job, int span, const RowGroup& g, float* scores, float* keep,
                  float* take) {
  const f32x16 log2_e = f32_splat(1.44269504088896341f);
  const int tile_begin = (g.begin - span) / kKeyTile * kKeyTile;
  const int tile_end = (g.end - span + kKeyTile - 1) / kKeyTile * kKeyTile;
  float part_max[16] = {};
  float part_sum[16] = {};
  for (int r = 0; r < g.count; ++r) {
    float* s = scores + r * kSpan;
    const int first = job.first[g.row + r] - span;
    const int last = job.last[g.row + r] - span;
    const int from = first > tile_begin ? first : tile_begin;
    const int to = last + 1 < tile_end ? last + 1 : tile_end;
    if (from >= to) {
      std::memset(s + tile_begin, 0, static_cast<std::size_t>(tile_end - tile_begin) * 4);
      continue;  // the sum stays 0
    }
    if (job.softcap > 0.0f) {
      const f32x16 cap = f32_splat(job.softcap);
      const f32x16 inverse = f32_splat(1.0f / job.softcap);
      for (int i = tile_begin; i < tile_end; i += 16) {
        f32_store(s + i, cap * tanh(f32_load(s + i) * inverse));
      }
    }
    for (int i = tile_begin; i < from; ++i) s[i] = -INFINITY;
    for (int i = to; i < tile_end; ++i) s[i] = -INFINITY;
    f32x16 largest = f32_splat(-INFINITY);
    for (int i = tile_begin; i < tile_end; i += 16) largest = max(largest, f32_load(s + i));
    part_max[r] = reduce_max(largest) * 1.44269504088896341f;
    const f32x16 shift = f32_splat(-part_max[r]);
    f32x16 sum = f32_zero();
    for (int i = tile_begin; i < tile_end; i += 16) {
      const f32x16 e = exp2_of_negative(fma(f32_load(s + i), log2_e, shift));
      f32_store(s + i, e);
      sum = sum + e;
    }
    part_sum[r] = reduce_add(sum);
    // Masked positions gave 2^-125 each, which vanishes in a sum of at least 1, and are to weigh
    // nothing.
    for (int i = tile_begin; i < from; ++i) s[i] = 0.0f;
    for (int i = to; i < tile_end; ++i) s[i] = 0.0f;
  }
  const MergeFactors f(f32_load_n(job.max + g.row, g.count), f32_load(part_max));
  const f32x16 sum = f32_load_n(job.sum + g.row, g.count);
  float new_max[16];
  float new_sum[16];
  float keeps[16];
  float takes[16];
  f32_store(new_max, f.largest);
  f32_store(new_sum, fma(sum, f.keep, f32_load(part_sum) * f.take));
  f32_store(keeps, f.keep);
  f32_store(takes, f.take);
  for (int r = 0; r < g.count; ++r) {
    const bool visible = !(part_sum[r] == 0.0f);
    keep[r] = visible ? keeps[r] : 1.0f;
    take[r] = visible ? takes[r] : 0.0f;
    if (visible) {
      job.max[g.row + r] = new_max[r];
      job.sum[g.row + r] = new_sum[r];
    }
  }
}

// ---- weighted values

// acc[r][t] += weights[r][j] * values[j] for `count` values from `value` on, each at dimensions
// 16 * kTiles; weights of row r at r * kSpan. As many bytes are asked for from `ahead` on (kAhead).
template <class Kv, int kRows, int kTiles, bool kAhead = false>
TIDEMILL_INLINE void weigh_run(const std::byte* value, std::size_t stride, const float* scales,
                               const float* weights, int count, f32x16 (&acc)[kRows][kTiles],
                               const std::byte* ahead = nullptr) {
  for (int j = 0; j < count; ++j, value += stride) {
    if constexpr (kAhead) {
      constexpr int kRun = 16 * kTiles * Kv::kBytes;
#pragma GCC unroll 8
      for (int i = 0; i < kRun; i += 64) prefetch(ahead + j * kRun + i);
    }
    // A tile at a time, as in score_tiles.
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      f32x16 v = Kv::load(value + t * 16 * Kv::kBytes);
      if constexpr (Kv::kType == KvType::q8_0) v = v * f32_splat(scales[j]);
      const float* factors = row_factors<kRows, kTiles>(weights + j);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        acc[r][t] = fma(f32_splat(factors[r * kSpan]), v, acc[r][t]);
      }
    }
  }
}

template <int kRows, int kTiles>
TIDEMILL_INLINE void clear(f32x16 (&acc)[kRows][kTiles]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) acc[r][t] = f32_zero();
  }
}

// state = state * keep + acc * take
template <int kRows, int kTiles>
TIDEMILL_INLINE void merge_rows(const f32x16 (&acc)[kRows][kTiles], const float* keep,
                                const float* take, float* state, int stride) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      float* out = state + r * stride + t * 16;
      f32_store(out, fma(f32_load(out), f32_splat(keep[r]), acc[r][t] * f32_splat(take[r])));
    }
  }
}

// The values as they are stored, over positions [begin, end), for 16 * kTiles dimensions from `d`.
// weights and scales are those of position `begin`. Up to position `ahead`, the key a span later is
// asked for.
template <class Kv, int kRows, int kTiles>
TIDEMILL_INLINE void weigh_stored(const KvReader& kv, const float* weights, const float* scales,
                                  int begin, int end, int d, int ahead, const float* keep,
                                  const float* take, float* state) {
  const KvLayout& l = kv.layout;
  const std::size_t stride = static_cast<std::size_t>(l.padded_dim) * Kv::kBytes;
  f32x16 acc[kRows][kTiles];
  clear(acc);
  for (int position = begin; position < end;) {
    const int run_end = position / l.tile * l.tile + l.tile;
    const int stop = run_end < end ? run_end : end;
    const std::byte* value = kv.values(position, Kv::kBytes) + d * Kv::kBytes;
    const std::byte* next = value;  // asked for in vain: cheaper than a branch for each row
    if (position < ahead) next = kv.keys(position + kSpan, Kv::kBytes) + d * kKeyTile * Kv::kBytes;
    weigh_run<Kv, kRows, kTiles, true>(value, stride, scales + (position - begin),
                                       weights + (position - begin), stop - position, acc, next);
    position = stop;
  }
  merge_rows(acc, keep, take, state + d, l.padded_dim);
}

// ---- one span

// A thread's scratch, cut up.
struct AttendScratch {
  float* scores;  // [kAttendChunk][kSpan]
  float* scales;  // [kSpan]
  float* values;  // [kSpan][16 * kAttendTiles]
  float* keys;    // [kAttendTiles][head_dim][16]

  explicit AttendScratch(float* memory)
      : scores(memory),
        scales(scores + kAttendChunk * kSpan),
        values(scales + kSpan),
        keys(values + kSpan * 16 * kAttendTiles) {}
};

// Rows of one micro kernel, as in decoding: memory-bound, so that keys and values are read once,
// where they lie, and what comes next is asked for in time.
template <class Kv, int kRows>
void attend_few(const AttendJob& job, int span, int row) {
  const KvLayout& l = *job.layout;
  const KvReader kv{l, job.layer, job.blocks, job.kv_head};
  const RowGroup g(job, row, kRows, span);
  const float* q = job.q + row * l.head_dim;
  float* state = job.acc + row * l.padded_dim;
  if (g.empty()) return;
  const AttendScratch scratch(job.scratch);

  constexpr int kMost = tiles_at_once(kRows);
  const int tile_begin = g.begin / kKeyTile * kKeyTile;
  const bool whole_tiles = l.tile == kKeyTile;
  // The keys of the first span were not asked for by the values of a span before.
  constexpr int kAheadKeys = kKeyTile * (kMost > 2 ? kMost : 2);
  const int asked = span == job.span_begin * kSpan ? g.end - kAheadKeys : 0;
  const auto score = [&]<int kTiles>(std::integral_constant<int, kTiles>, int position) {
    KeyTile keys[kTiles];
    for (int t = 0; t < kTiles; ++t) {
      const int at = position + t * kKeyTile;
      keys[t] = {kv.keys(at, Kv::kBytes), nullptr, kv.values(at, Kv::kBytes)};
      if (at < asked) keys[t].ahead_keys = kv.keys(at + kAheadKeys, Kv::kBytes);
      if constexpr (Kv::kType == KvType::q8_0) keys[t].scales = kv.key_scales(at);
    }
    score_tiles<Kv, kRows, kTiles, true>(q, l.head_dim, keys, l.block_size,
                                         scratch.scores + (position - span));
  };
  int position = tile_begin;
  if (whole_tiles) {
    for (; position + (kMost - 1) * kKeyTile < g.end; position += kMost * kKeyTile) {
      score(std::integral_constant<int, kMost>(), position);
    }
    for (; position < g.end; position += kKeyTile) {
      score(std::integral_constant<int, 1>(), position);
    }
  } else {
    for (; position < g.end; position += kKeyTile) {
      gather_keys<Kv>(kv, position, g.end, scratch.keys);
      const KeyTile keys[1] = {{reinterpret_cast<const std::byte*>(scratch.keys)}};
      score_tiles<KvF32, kRows, 1>(q, l.head_dim, keys, 0, scratch.scores + (position - span));
    }
  }

  float keep[kRows];
  float take[kRows];
  softmax_rows(job, span, g, scratch.scores, keep, take);

  // Where the positions end whose successors, a span later, are asked for.
  const int last = job.last[row + kRows - 1] + 1;
  const int visited = job.ahead_end * kSpan < last ? job.ahead_end * kSpan : last;
  const int ahead = whole_tiles ? visited - kSpan : 0;
  // With q8_0, the dimensions of one scale group at a time.
  constexpr int kTiles = Kv::kType == KvType::q8_0 && kMost > 2 ? 2 : kMost;
  const float* weights = scratch.scores + (g.begin - span);
  const float* scales = scratch.scales + (g.begin - span);
  for (int d = 0; d < l.padded_dim;) {
    if constexpr (Kv::kType == KvType::q8_0) {
      if (d % kKvGroup == 0) load_value_scales(kv, g.begin, g.end, d / kKvGroup, scratch.scales);
    }
    if (kTiles > 1 && d + 16 * kTiles <= l.padded_dim) {
      weigh_stored<Kv, kRows, kTiles>(kv, weights, scales, g.begin, g.end, d, ahead, keep, take,
                                      state);
      d += 16 * kTiles;
    } else {
      weigh_stored<Kv, kRows, 1>(kv, weights, scales, g.begin, g.end, d, ahead, keep, take, state);
      d += 16;
    }
  }
}

// Rows of several micro kernels: each tile of keys and each column of values serves all of them
// from the first-level cache, as floats.
template <class Kv>
void attend_many(const AttendJob& job, int span, int first_row, int rows) {
  const KvLayout& l = *job.layout;
  const KvReader kv{l, job.layer, job.blocks, job.kv_head};
  const AttendScratch scratch(job.scratch);

  RowGroup groups[kAttendChunk / kAttendRows];
  const int n_groups = (rows + kAttendRows - 1) / kAttendRows;
  int begin = span + kSpan;
  int end = span;
  for (int i = 0, row = 0; i < n_groups; ++i) {
    const int stop = rows * (i + 1) / n_groups;  // evenly
    groups[i] = RowGroup(job, first_row + row, stop - row, span);
    row = stop;
    if (groups[i].empty()) continue;
    begin = groups[i].begin < begin ? groups[i].begin : begin;
    end = groups[i].end > end ? groups[i].end : end;
  }
  if (begin >= end) return;
  const auto scores_of = [&](const RowGroup& g) {
    return scratch.scores + (g.row - first_row) * kSpan;
  };

  const bool whole_tiles = l.tile == kKeyTile;
  constexpr bool kConvertKeys = Kv::kType == KvType::q8_0;
  const auto score = [&]<int kTiles>(std::integral_constant<int, kTiles>, int position) {
    KeyTile keys[kTiles];
    for (int t = 0; t < kTiles; ++t) {
      const int at = position + t * kKeyTile;
      float* copy = scratch.keys + t * l.head_dim * kKeyTile;
      if (!whole_tiles) {
        gather_keys<Kv>(kv, at, end, copy);
      } else if (kConvertKeys) {
        convert_keys<Kv>(kv, at, copy);
      } else {
        keys[t] = {kv.keys(at, Kv::kBytes)};
        continue;
      }
      keys[t] = {reinterpret_cast<const std::byte*>(copy)};
    }
    const auto each = [&]<class As>(As) {
      for (int i = 0; i < n_groups; ++i) {
        const RowGroup& g = groups[i];
        if (g.begin >= position + kTiles * kKeyTile || g.end <= position) continue;
        with_rows(g.count, [&](auto count) {
          score_tiles<As, decltype(count)::value, kTiles>(
              job.q + g.row * l.head_dim, l.head_dim, keys, 0, scores_of(g) + (position - span));
        });
      }
    };
    if (kConvertKeys || !whole_tiles) {
      each(KvF32());
    } else if constexpr (!kConvertKeys) {
      each(Kv());
    }
  };
  int position = begin / kKeyTile * kKeyTile;
  for (; position + (kManyTiles - 1) * kKeyTile < end; position += kManyTiles * kKeyTile) {
    score(std::integral_constant<int, kManyTiles>(), position);
  }
  for (; position < end; position += kKeyTile) {
    score(std::integral_constant<int, 1>(), position);
  }

  float keep[kAttendChunk];
  float take[kAttendChunk];
  for (int i = 0; i < n_groups; ++i) {
    const RowGroup& g = groups[i];
    if (g.empty()) continue;
    softmax_rows(job, span, g, scores_of(g), keep + (g.row - first_row),
                 take + (g.row - first_row));
  }

  const auto weigh = [&]<int kTiles>(std::integral_constant<int, kTiles>, int d) {
    convert_values<Kv, kTiles>(kv, begin, end, d, scratch.scales, scratch.values);
    for (int i = 0; i < n_groups; ++i) {
      const RowGroup& g = groups[i];
      if (g.empty()) continue;
      with_rows(g.count, [&](auto count) {
        constexpr int kRows = decltype(count)::value;
        f32x16 acc[kRows][kTiles];
        clear(acc);
        const int from = g.begin - span;
        weigh_run<KvF32, kRows, kTiles>(
            reinterpret_cast<const std::byte*>(scratch.values + from * 16 * kTiles),
            sizeof(float) * 16 * kTiles, nullptr, scores_of(g) + from, g.end - g.begin, acc);
        merge_rows(acc, keep + (g.row - first_row), take + (g.row - first_row),
                   job.acc + g.row * l.padded_dim + d, l.padded_dim);
      });
    }
  };
  for (int d = 0; d < l.padded_dim;) {
    if constexpr (Kv::kType == KvType::q8_0) {
      if (d % kKvGroup == 0) load_value_scales(kv, begin, end, d / kKvGroup, scratch.scales);
    }
    if (kManyTiles > 1 && d + 16 * kManyTiles <= l.padded_dim) {
      weigh(std::integral_constant<int, kManyTiles>(), d);
      d += 16 * kManyTiles;
    } else {
      weigh(std::integral_constant<int, 1>(), d);
      d += 16;
    }
  }
}

template <class Kv>
void attend_typed(const AttendJob& job) {
  for (int span = job.span_begin * kSpan; span < job.span_end * kSpan; span += kSpan) {
    if (job.rows <= 2 * kAttendRows) {
      const int groups = job.rows <= kAttendRows ? 1 : 2;
      for (int i = 0; i < groups; ++i) {
        const int row = job.rows * i / groups;
        with_rows(job.rows * (i + 1) / groups - row, [&](auto rows) {
          attend_few<Kv, decltype(rows)::value>(job, span, row);
        });
      }
      continue;
    }
    for (int row = 0; row < job.rows; row += kAttendChunk) {
      const int rest = job.rows - row;
      attend_many<Kv>(job, span, row, rest < kAttendChunk ? rest : kAttendChunk);
    }
  }
}

void attention_attend(const AttendJob& job) {
  switch (job.layout->type) {
    case KvType::f32: attend_typed<KvF32>(job); break;
    case KvType::f16: attend_typed<KvF16>(job); break;
    case KvType::q8_0: attend_typed<KvQ8>(job); break;
  }
}

void attention_merge(int dim, float part_max, float part_sum, const float* part, float* max,
                     float* sum, float* acc) {
  if (part_sum == 0.0f) return;  // a span that the row does not see
  const MergeFactors f(f32_splat(*max), f32_splat(part_max));
  float lanes[16];
  f32_store(lanes, f.largest);
  *max = lanes[0];
  f32_store(lanes, fma(f32_splat(*sum), f.keep, f32_splat(part_sum) * f.take));
  *sum = lanes[0];
  for (int d = 0; d < dim; d += 16) {
    f32_store(acc + d, fma(f32_load(acc + d), f.keep, f32_load(part + d) * f.take));
  }
}

constexpr AttentionKernels attention_kernels() {
  return {attention_append, attention_attend, attention_merge};
}

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
