// Norms, activations, rope and element-wise operations of one row. See kernels.h for the rules.
#pragma once

#include "rows_kernels.h"
#include "simd.h"
#include "vmath.inl.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

// out[i] = f(x[i]) and out[i] = f(x[i], y[i]), 16 at a time.
template <class F>
TIDEMILL_INLINE void map_row(const float* x, int n, float* out, F f) {
  int i = 0;
  for (; i + 16 <= n; i += 16) f32_store(out + i, f(f32_load(x + i)));
  if (i < n) f32_store_n(out + i, f(f32_load_n(x + i, n - i)), n - i);
}
template <class F>
TIDEMILL_INLINE void map_rows(const float* x, const float* y, int n, float* out, F f) {
  int i = 0;
  for (; i + 16 <= n; i += 16) f32_store(out + i, f(f32_load(x + i), f32_load(y + i)));
  if (i < n) {
    f32_store_n(out + i, f(f32_load_n(x + i, n - i), f32_load_n(y + i, n - i)), n - i);
  }
}

void row_rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
  f32x16 even = f32_zero();
  f32x16 odd = f32_zero();
  int i = 0;
  for (; i + 32 <= n; i += 32) {
    const f32x16 a = f32_load(x + i);
    const f32x16 b = f32_load(x + i + 16);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  for (; i < n; i += 16) {
    const f32x16 a = f32_load_n(x + i, n - i < 16 ? n - i : 16);
    even = fma(a, a, even);
  }
  const float mean = reduce_add(even + odd) / static_cast<float>(n);
  const f32x16 inverse = f32_splat(1.0f / ::sqrtf(mean + eps));
  map_rows(x, weight, n, out, [=](f32x16 a, f32x16 w) { return a * inverse * w; });
}

void row_add(const float* x, const float* y, int n, float* out) {
  map_rows(x, y, n, out, [](f32x16 a, f32x16 b) { return a + b; });
}

void row_mul(const float* x, const float* y, int n, float* out) {
  map_rows(x, y, n, out, [](f32x16 a, f32x16 b) { return a * b; });
}

void row_scale(const float* x, float factor, int n, float* out) {
  const f32x16 f = f32_splat(factor);
  map_row(x, n, out, [=](f32x16 a) { return a * f; });
}

void row_accumulate(const float* x, float factor, int n, float* out) {
  const f32x16 f = f32_splat(factor);
  map_rows(x, out, n, out, [=](f32x16 a, f32x16 b) { return fma(a, f, b); });
}

void row_softcap(const float* x, float cap, int n, float* out) {
  const f32x16 c = f32_splat(cap);
  const f32x16 inverse = f32_splat(1.0f / cap);
  map_row(x, n, out, [=](f32x16 a) { return c * tanh(a * inverse); });
}

void row_softmax(const float* x, int n, float* out) {
  if (n <= 0) return;
  float top = x[0];
  for (int i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
  const f32x16 shift = f32_splat(top);
  map_row(x, n, out, [=](f32x16 a) { return exp_of_negative(a - shift); });
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum += out[i];
  row_scale(out, 1.0f / sum, n, out);
}

template <class Act>
void row_activate(const float* x, int n, float* out) {
  map_row(x, n, out, [](f32x16 a) { return Act::apply(a); });
}

template <class Act>
void row_gated(const float* gate, const float* up, int n, float* out) {
  map_rows(gate, up, n, out, [](f32x16 g, f32x16 u) { return Act::apply(g) * u; });
}

void rope_half(const float* x, const float* cos, const float* sin, int pairs, int dim,
               float* out) {
  int i = 0;
  for (; i + 16 <= pairs; i += 16) {
    const f32x16 c = f32_load(cos + i);
    const f32x16 s = f32_load(sin + i);
    const f32x16 a = f32_load(x + i);
    const f32x16 b = f32_load(x + pairs + i);
    f32_store(out + i, a * c - b * s);
    f32_store(out + pairs + i, b * c + a * s);
  }
  if (i < pairs) {
    const int n = pairs - i;
    const f32x16 c = f32_load_n(cos + i, n);
    const f32x16 s = f32_load_n(sin + i, n);
    const f32x16 a = f32_load_n(x + i, n);
    const f32x16 b = f32_load_n(x + pairs + i, n);
    f32_store_n(out + i, a * c - b * s, n);
    f32_store_n(out + pairs + i, b * c + a * s, n);
  }
  if (out != x) {
    for (int d = 2 * pairs; d < dim; ++d) out[d] = x[d];
  }
}

void rope_interleaved(const float* x, const float* cos, const float* sin, int pairs, int dim,
                      float* out) {
  for (int i = 0; i < pairs; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    out[2 * i] = a * cos[i] - b * sin[i];
    out[2 * i + 1] = b * cos[i] + a * sin[i];
  }
  if (out != x) {
    for (int i = 2 * pairs; i < dim; ++i) out[i] = x[i];
  }
}

constexpr RowKernels row_kernels() {
  return {
      row_rms_norm,
      row_add,
      row_mul,
      row_scale,
      row_accumulate,
      row_softcap,
      row_softmax,
      {row_activate<Silu>, row_activate<GeluTanh>, row_activate<Gelu>},
      {row_gated<Silu>, row_gated<GeluTanh>, row_gated<Gelu>},
      rope_half,
      rope_interleaved,
  };
}

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
