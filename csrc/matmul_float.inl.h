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

// How far ahead of a few tokens their 16-bit weights are fetched, in bytes.
inline constexpr int kFloatAhead = 4096;

struct WeightsF32 {
  static constexpr int kColumnBytes = 64;
  static TIDEMILL_INLINE f32x16 column(const std::uint8_t* p) {
    return f32_load(reinterpret_cast<const float*>(p));
  }
};
struct WeightsF16 {
  static constexpr int kColumnBytes = 32;
  static TIDEMILL_INLINE f32x16 column(const std::uint8_t* p) {
    return f32_load_f16(reinterpret_cast<const std::uint16_t*>(p));
  }
};
struct WeightsBF16 {
  static constexpr int kColumnBytes = 32;
  static TIDEMILL_INLINE f32x16 column(const std::uint8_t* p) {
    return f32_load_bf16(reinterpret_cast<const std::uint16_t*>(p));
  }
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

template <class Weights>
void multiply_float_few(const Matmul& m) {
  const float* x[kMostFloatDirect];
  for (int t = 0; t < m.tokens; ++t) x[t] = m.floats + row_of(m.x_rows, t) * m.x_stride;
  for (int tile = m.tile_begin; tile < m.tile_end; ++tile) {
    const std::uint8_t* w = m.weights.data + static_cast<std::size_t>(tile) * m.weights.tile_bytes;
    for (int t = 0; t < m.tokens;) {
      const int count = next_tokens(m.tokens - t, kFloatTokens);
      f32x16 acc[kFloatTokens];
      for (int i = 0; i < count; ++i) acc[i] = f32_zero();
      accumulate_float_some<Weights, kFloatTokens>(count, w, m.weights.cols, x + t, acc);
      for (int i = 0; i < count; ++i) write_output(m, tile, t + i, acc[i]);
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
    const std::uint8_t* w = m.weights.data + static_cast<std::size_t>(tile) * m.weights.tile_bytes;
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
    for (int t = 0; t < tokens; ++t) write_output(m, tile, first + t, acc[t]);
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
  return k;
}

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
