// The row family's part of the function table: norms, activations and rope of one row of floats.
#pragma once

namespace tidemill {

enum class ActivationKind : int { silu = 0, gelu_tanh = 1, gelu = 2 };
inline constexpr int kActivationKinds = 3;

// `n` is any count >= 0; `out` may be an input (the same elements) and overlaps it in no other way.
struct RowKernels {
  // out = x / sqrt(mean(x^2) + eps) * weight
  void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* out);
  void (*add)(const float* x, const float* y, int n, float* out);
  void (*mul)(const float* x, const float* y, int n, float* out);
  void (*scale)(const float* x, float factor, int n, float* out);
  // out += factor * x
  void (*accumulate)(const float* x, float factor, int n, float* out);
  // out = cap * tanh(x / cap)
  void (*softcap)(const float* x, float cap, int n, float* out);
  void (*softmax)(const float* x, int n, float* out);
  // By ActivationKind: out = act(x), out = act(gate) * up
  void (*activate[kActivationKinds])(const float* x, int n, float* out);
  void (*gated[kActivationKinds])(const float* gate, const float* up, int n, float* out);
  // Rotate `pairs` pairs of one head by the angles whose cosines and sines (times the magnitude)
  // are given; elements from 2 * pairs on up to `dim` are copied.
  void (*rope_half)(const float* x, const float* cos, const float* sin, int pairs, int dim,
                    float* out);
  void (*rope_interleaved)(const float* x, const float* cos, const float* sin, int pairs, int dim,
                           float* out);
};

}  // namespace tidemill
