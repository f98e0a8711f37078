// The passes of sampling over a whole row of logits, one set per instruction set.
#pragma once

#include <cstdint>

namespace tidemill {

inline constexpr std::int32_t kLogitBlock = 64;  // logits that share one maximum and one sum

struct SamplingKernels {
  // maxima[b] = the maximum of block b (the last one may be short). Gives the maximum of all n;
  // *finite says whether all of them are finite.
  float (*maxima)(const float* x, std::int32_t n, float* maxima, bool* finite);

  // sums[b] = the sum of exp((x - maximum) * scale) over block b. Gives the total.
  double (*sums)(const float* x, std::int32_t n, float maximum, float scale, double* sums);

  // out[i] = exp(x[i]) for x[i] <= 0 (0 below -87).
  void (*exponentials)(const float* x, std::int32_t n, float* out);

  // How many of x are greater than `bound`, plus how many of x[0:position] equal it.
  std::int32_t (*count_before)(const float* x, std::int32_t n, float bound, std::int32_t position);
};

}  // namespace tidemill
