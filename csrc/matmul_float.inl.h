// Products of float weights (F32, F16, BF16) and float32 activations: one fused multiply-add per
// column, in column order, on one accumulator per output.
#pragma once

#include "matmul.inl.h"
#include "peak.inl.h"
#include "quantize.inl.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

// Columns per stretch: 16 KiB of weights as float32.
inline constexpr int kFloatColumns = 256;
inline constexpr int kFloatBlockTokens = 96;

// Up to this many tokens are taken straight from the packed tiles, in one or two passes.
inline constexpr int kMostFloatDirect = 2 * kFloatTokens;

// As kStreams of matmul.inl.h. A column's multiply-adds take long enough, one behind the other, that
// four tiles in turn are faster even from the cache.
inline constexpr int kFloatStreams = 4;

// How far ahead of a few tokens their 16-bit weights are fetched, in bytes.
inline constexpr int kFloatAhead = 4096;

// column(p) is the weights of 16 rows, in an order that is cheap to load; in_rows() brings the sums
// that come of it into the rows' order.
struct WeightsF32 {
  static constexpr int kColumnBytes = 64;
  static TIDEMILL_INLINE f32x16 column(const std::uint8_t* p) {
    return f32_load(reinterpret_cast<const float*>(p));
  }
  static TIDEMILL_INLINE f32x16 in_rows(f32x16 sums) { return sums; }
};
struct WeightsF16 {
  static constexpr int kColumnBytes = 32;
  static TIDEMILL_INLINE f32x16 column(const std::uint8_t* p) {
    return f32_load_f16(reinterpret_cast<const std::uint16_t*>(p));
  }
  static TIDEMILL_INLINE f32x16 in_rows(f32x16 sums) { return sums; }
};
struct WeightsBF16 {
  static constexpr int kColumnBytes = 32;
  static TIDEMILL_INLINE f32x16 column(const std::uint8_t* p) {
    return f32_load_bf16_split(reinterpret_cast<const std::uint16_t*>(p));
  }
  static TIDEMILL_INLINE f32x16 in_rows(f32x16 sums) { return f32_unsplit(sums); }
};

template <class Weights, int T>
[[gnu::noinline]] void accumulate_float(const std::uint8_t* w, int cols, const float* const* tokens,
                                        f32x16* accumulators) {
  const float* x[T];
  f32x16 acc[T];
  for (int t = 0; t < T; ++t) {
    x[t] = tokens[t];
    acc[t] = accumulators[t];
  }
  for (int c = 0; c < cols; ++c, w += Weights::kColumnBytes) {
    // Across page ends, where hardware prefetching stops. (Also past the matrix, harmlessly.)
    if constexpr (T <= 4 && Weights::kColumnBytes < 64) prefetch(w + kFloatAhead);
    const f32x16 column = Weights::column(w);
    unroll(std::make_integer_sequence<int, T>{}, [&](auto token) {
      constexpr int t = decltype(token)::value;
      acc[t] = fma(column, f32_splat(x[t][c]), acc[t]);
    });
  }
  for (int t = 0; t < T; ++t) accumulators[t] = acc[t];
}

// sums[k] = the product of tiles[k] with a token.
template <class Weights>
[[gnu::noinline]] void accumulate_float_streams(const std::uint8_t* const (&tiles)[kFloatStreams],
                                                int cols, const float* token,
                                                f32x16 (&sums)[kFloatStreams]) {
  f32x16 acc[kFloatStreams];
  for (f32x16& sum : acc) sum = f32_zero();
  for (int c = 0; c < cols; ++c) {
    const f32x16 x = f32_splat(token[c]);
    const std::size_t at = static_cast<std::size_t>(c) * Weights::kColumnBytes;
    unroll(std::make_integer_sequence<int, kFloatStreams>{}, [&](auto stream) {
      constexpr int k = decltype(stream)::value;
      acc[k] = fma(Weights::column(tiles[k] + at), x, acc[k]);
    });
  }
  for (int k = 0; k < kFloatStreams; ++k) sums[k] = acc[k];
}

template <class Weights, int kMost>
void accumulate_float_some(int count, const std::uint8_t* w, int cols, const float* const* tokens,
                           f32x16* acc) {
  if constexpr (kMost == 1) {
    accumulate_float<Weights, 1>(w, cols, tokens, acc);
  } else if (count == kMost) {
    accumulate_float<Weights, kMost>(w, cols, tokens, acc);
  } else {
    accumulate_float_some<Weights, kMost - 1>(count, w, cols, tokens, acc);
  }
}

TIDEMILL_INLINE const std::uint8_t* float_tile(const PackedMatrix& w, int tile) {
  return w.data + static_cast<std::size_t>(tile) * w.tile_bytes;
}

// One token with as many tiles as all streams have; gives the first that is left.
template <class Weights>
int multiply_float_streams(const Matmul& m, const float* token) {
  const int length = (m.tile_end - m.tile_begin) / kFloatStreams;
  for (int i = 0; i < length; ++i) {
    const std::uint8_t* tiles[kFloatStreams];
    f32x16 sums[kFloatStreams];
    const auto tile = [&](int k) { return m.tile_begin + k * length + i; };
    for (int k = 0; k < kFloatStreams; ++k) tiles[k] = float_tile(m.weights, tile(k));
    accumulate_float_streams<Weights>(tiles, m.weights.cols, token, sums);
    for (int k = 0; k < kFloatStreams; ++k) write_output(m, tile(k), 0, Weights::in_rows(sums[k]));
  }
  return m.tile_begin + kFloatStreams * length;
}

template <class Weights>
void multiply_float_few(const Matmul& m) {
  const float* x[kMostFloatDirect];
  for (int t = 0; t < m.tokens; ++t) x[t] = m.floats + row_of(m.x_rows, t) * m.x_stride;
  int tile = m.tokens == 1 ? multiply_float_streams<Weights>(m, x[0]) : m.tile_begin;
  for (; tile < m.tile_end; ++tile) {
    const std::uint8_t* w = float_tile(m.weights, tile);
    for (int t = 0; t < m.tokens;) {
      const int count = next_tokens(m.tokens - t, kFloatTokens);
      f32x16 acc[kFloatTokens];
      for (int i = 0; i < count; ++i) acc[i] = f32_zero();
      accumulate_float_some<Weights, kFloatTokens>(count, w, m.weights.cols, x + t, acc);
      for (int i = 0; i < count; ++i) write_output(m, tile, t + i, Weights::in_rows(acc[i]));
      t += count;
    }
  }
}

template <class Weights>
void multiply_float_block(const Matmul& m, int first, int last) {
  const float* x[kFloatBlockTokens];
  alignas(64) f32x16 acc[kFloatBlockTokens];
  alignas(64) float stage[kFloatColumns * kTileRows];
  const int tokens = last - first;
  for (int t = 0; t < tokens; ++t) x[t] = m.floats + row_of(m.x_rows, first + t) * m.x_stride;
  for (int tile = m.tile_begin; tile < m.tile_end; ++tile) {
    const std::uint8_t* w = float_tile(m.weights, tile);
    for (int t = 0; t < tokens; ++t) acc[t] = f32_zero();
    for (int begin = 0; begin < m.weights.cols; begin += kFloatColumns) {
      const int left = m.weights.cols - begin;
      const int cols = left < kFloatColumns ? left : kFloatColumns;
      for (int c = 0; c < cols; ++c) {
        f32_store(stage + c * kTileRows, Weights::column(w));
        w += Weights::kColumnBytes;
      }
      const float* from[kFloatTokens];
      for (int t = 0; t < tokens;) {
        const int count = next_tokens(tokens - t, kFloatTokens);
        for (int i = 0; i < count; ++i) from[i] = x[t + i] + begin;
        accumulate_float_some<WeightsF32, kFloatTokens>(
            count, reinterpret_cast<const std::uint8_t*>(stage), cols, from, acc + t);
        t += count;
      }
    }
    for (int t = 0; t < tokens; ++t) write_output(m, tile, first + t, Weights::in_rows(acc[t]));
  }
}

template <class Weights>
void multiply_float(const Matmul& m) {
  if (m.tokens <= 0) return;
  if (m.tokens <= kMostFloatDirect) {
    multiply_float_few<Weights>(m);
    return;
  }
  for (int first = 0; first < m.tokens; first += kFloatBlockTokens) {
    const int last = first + kFloatBlockTokens;
    multiply_float_block<Weights>(m, first, last < m.tokens ? last : m.tokens);
  }
}

template <TensorType type>
constexpr void put_quantized(MatmulKernels& k) {
  k.matmul[static_cast<int>(type)] = multiply_quantized<type>;
  k.peak[static_cast<int>(type)] = peak_quantized<FormatOf<type>>;
}
template <TensorType type, class Weights>
constexpr void put_float(MatmulKernels& k) {
  k.matmul[static_cast<int>(type)] = multiply_float<Weights>;
  k.peak[static_cast<int>(type)] = peak_float;
}

constexpr MatmulKernels matmul_kernels() {
  MatmulKernels k = {};
  put_float<TensorType::F32, WeightsF32>(k);
  put_float<TensorType::F16, WeightsF16>(k);
  put_float<TensorType::BF16, WeightsBF16>(k);
  put_quantized<TensorType::Q4_0>(k);
  put_quantized<TensorType::Q4_1>(k);
  put_quantized<TensorType::Q5_0>(k);
  put_quantized<TensorType::Q5_1>(k);
  put_quantized<TensorType::Q8_0>(k);
  put_quantized<TensorType::Q2_K>(k);
  put_quantized<TensorType::Q3_K>(k);
  put_quantized<TensorType::Q4_K>(k);
  put_quantized<TensorType::Q5_K>(k);
  put_quantized<TensorType::Q6_K>(k);
  put_quantized<TensorType::IQ4_NL>(k);
  put_quantized<TensorType::IQ4_XS>(k);
  put_quantized<TensorType::MXFP4>(k);
  k.quantize = quantize_row;
  k.read_memory = read_memory;
  return k;
}

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
