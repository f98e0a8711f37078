// Attention over paged KV blocks. attention.h describes the layout and the order of summation;
// see kernels.h for the rules of this file.
#pragma once

#include "attention.h"
#include "simd.h"
#include "vmath.inl.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

// ---- reading 16 stored elements

struct KvF32 {
  static constexpr KvType kType = KvType::f32;
  static constexpr int kBytes = 4;
  static TIDEMILL_INLINE f32x16 load(const std::byte* p) {
    return f32_load(reinterpret_cast<const float*>(p));
  }
};
struct KvF16 {
  static constexpr KvType kType = KvType::f16;
  static constexpr int kBytes = 2;
  static TIDEMILL_INLINE f32x16 load(const std::byte* p) {
    return f32_load_f16(reinterpret_cast<const std::uint16_t*>(p));
  }
};
struct KvQ8 {
  static constexpr KvType kType = KvType::q8_0;
  static constexpr int kBytes = 1;
  static TIDEMILL_INLINE f32x16 load(const std::byte* p) {
    return to_f32(i32_load_i8(reinterpret_cast<const std::uint8_t*>(p)));
  }
};

// ---- storing a token

TIDEMILL_INLINE f32x16 limit_half(f32x16 x) {
  return max(f32_splat(-65504.0f), min(f32_splat(65504.0f), x));
}

float half_to_float(std::uint16_t half) {
  std::uint16_t lanes[16] = {half};
  float out[16];
  f32_store(out, f32_load_f16(lanes));
  return out[0];
}

// `n` floats to int8 with one float16 scale; q = 0 where the scale vanishes.
std::uint16_t quantize_group(const float* x, int n, std::int8_t* q) {
  const f32x16 a = f32_load_n(x, n < 16 ? n : 16);
  const f32x16 b = n > 16 ? f32_load_n(x + 16, n - 16) : f32_zero();
  const float largest = reduce_max(max(abs(a), abs(b)));
  std::uint16_t halves[16];
  f32_store_f16(halves, limit_half(f32_splat(largest / 127.0f)));
  const float scale = half_to_float(halves[0]);
  const f32x16 inverse = f32_splat(scale > 0.0f ? 1.0f / scale : 0.0f);
  const i32x16 low = i32_splat(-127);
  const auto rounded = [&](f32x16 v) {
    return i32_max(low, round_to_i32(min(f32_splat(127.0f), v * inverse)));
  };
  store_i8(q, rounded(a));
  store_i8(q + 16, rounded(b));
  return halves[0];
}

void attention_append(const KvLayout& l, const float* k, const float* v, std::byte* head,
                      int slot) {
  const int dim = l.head_dim;
  const std::size_t row = static_cast<std::size_t>(slot) * static_cast<std::size_t>(l.padded_dim);
  // Element d of the token's key lies at key[d * tile].
  const std::size_t key = static_cast<std::size_t>(slot / l.tile) *
                              static_cast<std::size_t>(dim * l.tile) +
                          static_cast<std::size_t>(slot % l.tile);
  if (l.type == KvType::f32) {
    float* keys = reinterpret_cast<float*>(head) + key;
    for (int d = 0; d < dim; ++d) keys[d * l.tile] = k[d];
    std::memcpy(reinterpret_cast<float*>(head + l.values) + row, v,
                static_cast<std::size_t>(dim) * 4);
    return;
  }
  if (l.type == KvType::f16) {
    std::uint16_t* keys = reinterpret_cast<std::uint16_t*>(head) + key;
    std::uint16_t* values = reinterpret_cast<std::uint16_t*>(head + l.values) + row;
    for (int d = 0; d < dim; d += 16) {
      const int n = dim - d < 16 ? dim - d : 16;
      std::uint16_t halves[16];
      f32_store_f16(halves, limit_half(f32_load_n(k + d, n)));
      for (int i = 0; i < n; ++i) keys[(d + i) * l.tile] = halves[i];
      f32_store_f16(values + d, limit_half(f32_load_n(v + d, n)));
    }
    return;
  }
  std::int8_t* keys = reinterpret_cast<std::int8_t*>(head) + key;
  std::int8_t* values = reinterpret_cast<std::int8_t*>(head + l.values) + row;
  std::uint16_t* key_scales = reinterpret_cast<std::uint16_t*>(head + l.key_scales) + slot;
  std::uint16_t* value_scales = reinterpret_cast<std::uint16_t*>(head + l.value_scales) + slot;
  for (int g = 0; g < l.groups; ++g) {
    const int d = g * kKvGroup;
    const int n = dim - d < kKvGroup ? dim - d : kKvGroup;
    std::int8_t q[kKvGroup];
    key_scales[g * l.block_size] = quantize_group(k + d, n, q);
    for (int i = 0; i < n; ++i) keys[(d + i) * l.tile] = q[i];
    value_scales[g * l.block_size] = quantize_group(v + d, n, q);
    std::memcpy(values + d, q, static_cast<std::size_t>(n));
  }
}

// ---- one span

// Where the sequence's tokens lie.
struct KvReader {
  const KvLayout& layout;
  const std::byte* layer;
  const std::int32_t* blocks;
  int kv_head;

  TIDEMILL_INLINE const std::byte* head(int position) const {
    return layer +
           static_cast<std::size_t>(blocks[position / layout.block_size]) * layout.block_bytes +
           static_cast<std::size_t>(kv_head) * layout.head_bytes;
  }
  // The whole tile of keys that starts at `position` (where tiles have 16 tokens).
  TIDEMILL_INLINE const std::byte* keys(int position, int bytes) const {
    return head(position) + static_cast<std::size_t>(position % layout.block_size) *
                                static_cast<std::size_t>(layout.head_dim * bytes);
  }
  TIDEMILL_INLINE const std::uint16_t* key_scales(int position) const {
    return reinterpret_cast<const std::uint16_t*>(head(position) + layout.key_scales) +
           position % layout.block_size;
  }
};

// 16 tokens from `position` as floats, [head_dim][16]; tokens from `end` on become zero. For
// blocks of 8 tokens, whose tiles are too short for the kernels.
template <class Kv>
void gather_keys(const KvReader& kv, int position, int end, float* out) {
  const KvLayout& l = kv.layout;
  for (int half = 0; half < 2; ++half) {
    const int first = position + half * 8;
    float* column = out + half * 8;
    if (first >= end) {
      for (int d = 0; d < l.head_dim; ++d) std::memset(column + d * kKeyTile, 0, 8 * sizeof(float));
      continue;
    }
    const std::byte* head = kv.head(first);
    for (int d = 0; d < l.head_dim; ++d) {
      std::byte raw[16 * Kv::kBytes] = {};
      std::memcpy(raw, head + d * 8 * Kv::kBytes, static_cast<std::size_t>(8 * Kv::kBytes));
      f32x16 value = Kv::load(raw);
      if constexpr (Kv::kType == KvType::q8_0) {
        std::uint16_t scales[16] = {};
        std::memcpy(scales, head + l.key_scales + (d / kKvGroup) * 16, 16);
        value = value * f32_load_f16(scales);
      }
      f32_store_n(column + d * kKeyTile, value, 8);
    }
  }
}

// Scores of kRows rows against kTiles tiles of 16 keys: scores[r][tile * 16 ..].
template <class Kv, int kRows, int kTiles>
TIDEMILL_INLINE void score_tiles(const float* q, int dim, const std::byte* const* keys,
                                 const std::uint16_t* const* scales, int scale_stride,
                                 float* scores) {
  f32x16 acc[kRows][kTiles];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) acc[r][t] = f32_zero();
  }
  const auto accumulate = [&](int begin, int end, f32x16(&sum)[kRows][kTiles]) {
    for (int d = begin; d < end; ++d) {
      f32x16 key[kTiles];
#pragma GCC unroll 8
      for (int t = 0; t < kTiles; ++t) key[t] = Kv::load(keys[t] + d * kKeyTile * Kv::kBytes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const f32x16 query = f32_splat(q[r * dim + d]);
#pragma GCC unroll 8
        for (int t = 0; t < kTiles; ++t) sum[r][t] = fma(query, key[t], sum[r][t]);
      }
    }
  };
  if constexpr (Kv::kType == KvType::q8_0) {
    for (int d = 0; d < dim; d += kKvGroup) {
      f32x16 group[kRows][kTiles];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < kTiles; ++t) group[r][t] = f32_zero();
      }
      accumulate(d, dim - d < kKvGroup ? dim : d + kKvGroup, group);
#pragma GCC unroll 8
      for (int t = 0; t < kTiles; ++t) {
        const f32x16 scale = f32_load_f16(scales[t] + d / kKvGroup * scale_stride);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[r][t] = fma(group[r][t], scale, acc[r][t]);
      }
    }
  } else {
    accumulate(0, dim, acc);
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
#if defined(TIDEMILL_ISA_AVX512)
  return rows <= 2 ? 4 : 2;
#else
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
#endif
}

template <class Kv, int kRows>
void score_span(const KvReader& kv, const float* q, int begin, int end, float* key_buffer,
                float* scores) {
  const KvLayout& l = kv.layout;
  const int span = begin / kSpan * kSpan;
  int position = begin / kKeyTile * kKeyTile;
  if (l.tile < kKeyTile) {
    for (; position < end; position += kKeyTile) {
      gather_keys<Kv>(kv, position, end, key_buffer);
      const std::byte* keys[1] = {reinterpret_cast<const std::byte*>(key_buffer)};
      score_tiles<KvF32, kRows, 1>(q, l.head_dim, keys, nullptr, 0, scores + (position - span));
    }
    return;
  }
  constexpr int kTiles = tiles_at_once(kRows);
  const std::byte* keys[kTiles];
  const std::uint16_t* scales[kTiles];
  const auto point = [&](int tile) {
    keys[tile] = kv.keys(position + tile * kKeyTile, Kv::kBytes);
    if constexpr (Kv::kType == KvType::q8_0) {
      scales[tile] = kv.key_scales(position + tile * kKeyTile);
    } else {
      scales[tile] = nullptr;
    }
  };
  for (; position + (kTiles - 1) * kKeyTile < end; position += kTiles * kKeyTile) {
    for (int t = 0; t < kTiles; ++t) point(t);
    score_tiles<Kv, kRows, kTiles>(q, l.head_dim, keys, scales, l.block_size,
                                   scores + (position - span));
  }
  for (; position < end; position += kKeyTile) {
    point(0);
    score_tiles<Kv, kRows, 1>(q, l.head_dim, keys, scales, l.block_size,
                              scores + (position - span));
  }
}

// Weighted sum of values over positions [begin, end) for 16 * kTiles dimensions from `d`, and its
// merge into the state: acc = old * keep + sum * take.
template <class Kv, int kRows, int kTiles>
TIDEMILL_INLINE void weigh_values(const KvReader& kv, const float* weights, int begin, int end,
                                  int d, const float* keep, const float* take, float* state) {
  const KvLayout& l = kv.layout;
  const int span = begin / kSpan * kSpan;
  const int stride = l.padded_dim * Kv::kBytes;
  f32x16 acc[kRows][kTiles];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) acc[r][t] = f32_zero();
  }
  for (int position = begin; position < end;) {
    const int slot = position % l.block_size;
    const int block_end = position - slot + l.block_size;
    const int stop = block_end < end ? block_end : end;
    const std::byte* value = kv.head(position) + l.values + slot * stride + d * Kv::kBytes;
    for (; position < stop; ++position, value += stride) {
      f32x16 v[kTiles];
#pragma GCC unroll 8
      for (int t = 0; t < kTiles; ++t) v[t] = Kv::load(value + t * 16 * Kv::kBytes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const f32x16 weight = f32_splat(weights[r * kSpan + (position - span)]);
#pragma GCC unroll 8
        for (int t = 0; t < kTiles; ++t) acc[r][t] = fma(weight, v[t], acc[r][t]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      float* out = state + r * l.padded_dim + d + t * 16;
      f32_store(out, fma(f32_load(out), f32_splat(keep[r]), acc[r][t] * f32_splat(take[r])));
    }
  }
}

// weights[r][j] times the scale of value j in dimension group `group`.
template <int kRows>
void scale_weights(const KvReader& kv, const float* weights, int begin, int end, int group,
                   float* out) {
  const KvLayout& l = kv.layout;
  const int span = begin / kSpan * kSpan;
  for (int position = begin / kKeyTile * kKeyTile; position < end; position += kKeyTile) {
    std::uint16_t halves[kKeyTile] = {};
    for (int i = 0; i < kKeyTile && position + i < end; i += l.tile) {
      const std::byte* scales = kv.head(position + i) + l.value_scales;
      std::memcpy(halves + i,
                  reinterpret_cast<const std::uint16_t*>(scales) + group * l.block_size +
                      (position + i) % l.block_size,
                  static_cast<std::size_t>(l.tile) * 2);
    }
    const f32x16 scale = f32_load_f16(halves);
    for (int r = 0; r < kRows; ++r) {
      const int at = r * kSpan + (position - span);
      f32_store(out + at, f32_load(weights + at) * scale);
    }
  }
}

// How a running state of maximum `old` and a span of maximum `part` are scaled when they meet.
struct MergeFactors {
  float max, keep, take;
};
MergeFactors merge_factors(float old, float part) {
  const float m = old > part ? old : part;
  float both[16] = {old - m, part - m};
  f32_store(both, exp(f32_load(both)));
  return {m, both[0], both[1]};
}

// One span for kRows rows from `row` on.
template <class Kv, int kRows>
void attend_rows(const AttendJob& job, int span, int row) {
  const KvLayout& l = *job.layout;
  const KvReader kv{l, job.layer, job.blocks, job.kv_head};
  const std::int32_t* first = job.first + row;
  const std::int32_t* last = job.last + row;
  int begin = span + kSpan;
  int end = span;
  for (int r = 0; r < kRows; ++r) {
    begin = first[r] < begin ? first[r] : begin;
    end = last[r] + 1 > end ? last[r] + 1 : end;
  }
  begin = begin < span ? span : begin;
  end = end > span + kSpan ? span + kSpan : end;
  if (begin >= end) return;

  float* scores = job.scratch;
  float* scaled = scores + kAttendRows * kSpan;
  float* key_buffer = scaled + kAttendRows * kSpan;
  score_span<Kv, kRows>(kv, job.q + row * l.head_dim, begin, end, key_buffer, scores);

  const int tile_begin = (begin - span) / kKeyTile * kKeyTile;
  const int tile_end = (end - span + kKeyTile - 1) / kKeyTile * kKeyTile;
  float keep[kRows];
  float take[kRows];
  for (int r = 0; r < kRows; ++r) {
    float* s = scores + r * kSpan;
    const int from = first[r] > span + tile_begin ? first[r] - span : tile_begin;
    const int to = last[r] + 1 < span + tile_end ? last[r] + 1 - span : tile_end;
    if (from >= to) {
      std::memset(s + tile_begin, 0, static_cast<std::size_t>(tile_end - tile_begin) * 4);
      keep[r] = 1.0f;
      take[r] = 0.0f;
      continue;
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
    const float part_max = reduce_max(largest);
    const f32x16 shift = f32_splat(part_max);
    f32x16 sum = f32_zero();
    for (int i = tile_begin; i < tile_end; i += 16) {
      const f32x16 e = exp_of_negative(f32_load(s + i) - shift);
      f32_store(s + i, e);
      sum = sum + e;
    }
    const MergeFactors f = merge_factors(job.max[row + r], part_max);
    job.max[row + r] = f.max;
    job.sum[row + r] = job.sum[row + r] * f.keep + reduce_add(sum) * f.take;
    keep[r] = f.keep;
    take[r] = f.take;
  }

  float* state = job.acc + row * l.padded_dim;
  // With q8_0, the dimensions of one scale group at a time.
  constexpr int kMost = tiles_at_once(kRows);
  constexpr int kTiles = Kv::kType == KvType::q8_0 && kMost > 2 ? 2 : kMost;
  const float* weights = scores;
  for (int d = 0; d < l.padded_dim;) {
    if constexpr (Kv::kType == KvType::q8_0) {
      if (d % kKvGroup == 0) {
        scale_weights<kRows>(kv, scores, begin, end, d / kKvGroup, scaled);
        weights = scaled;
      }
    }
    if (kTiles > 1 && d + 16 * kTiles <= l.padded_dim) {
      weigh_values<Kv, kRows, kTiles>(kv, weights, begin, end, d, keep, take, state);
      d += 16 * kTiles;
    } else {
      weigh_values<Kv, kRows, 1>(kv, weights, begin, end, d, keep, take, state);
      d += 16;
    }
  }
}

template <class Kv>
void attend_typed(const AttendJob& job) {
  for (int span = job.span_begin * kSpan; span < job.span_end * kSpan; span += kSpan) {
    int row = 0;
    for (; row + kAttendRows <= job.rows; row += kAttendRows) {
      attend_rows<Kv, kAttendRows>(job, span, row);
    }
    switch (job.rows - row) {
      case 1: attend_rows<Kv, 1>(job, span, row); break;
      case 2: attend_rows<Kv, 2>(job, span, row); break;
      case 3: attend_rows<Kv, 3>(job, span, row); break;
      case 4: attend_rows<Kv, 4>(job, span, row); break;
      case 5: attend_rows<Kv, 5>(job, span, row); break;
      default: break;
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
  const MergeFactors f = merge_factors(*max, part_max);
  *max = f.max;
  *sum = *sum * f.keep + part_sum * f.take;
  const f32x16 keep = f32_splat(f.keep);
  const f32x16 take = f32_splat(f.take);
  for (int d = 0; d < dim; d += 16) {
    f32_store(acc + d, fma(f32_load(acc + d), keep, f32_load(part + d) * take));
  }
}

constexpr AttentionKernels attention_kernels() {
  return {attention_append, attention_attend, attention_merge};
}

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
