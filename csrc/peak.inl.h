// What this machine can do at most: the products of each weight format alone, operands in the
// first-level cache, nothing scaled; and memory read by one thread, nothing done with it. `tidemill
// bench kernel` holds the real kernels against it.
#pragma once

#include "matmul.inl.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

// Each runs `rounds` rounds and gives how many products that were.

template <class Format>
double peak_quantized(int rounds) {
  using Dot = typename Format::DotType;
  constexpr int kTokens = 4;
  alignas(64) static const std::uint8_t weights[8 * 64] = {1, 2, 3};
  alignas(64) static const std::int8_t quads[kTokens][kGroup] = {{1, 2, 3}};
  const std::uint8_t* w = weights;
  const std::int8_t* x = quads[0];
  const i32x16 factor = sub_factor(i32_splat(1));
  alignas(64) std::int32_t sums[kTokens][kTileRows];
  for (int round = 0; round < rounds; ++round) {
    // The compiler must not work out the same group once for all rounds.
    asm volatile("" : "+r"(w), "+r"(x));
    Dot dot[kTokens];
    unroll(std::make_integer_sequence<int, 8>{}, [&](auto quad) {
      constexpr int j = decltype(quad)::value;
      const b64 weight = b64_load(w + 64 * j);
      unroll(std::make_integer_sequence<int, kTokens / 2>{}, [&](auto pair) {
        constexpr int t = 2 * decltype(pair)::value;
        const b64 a = b64_quad(x + t * kGroup + 4 * j);
        const b64 b = b64_quad(x + (t + 1) * kGroup + 4 * j);
        if constexpr (Format::kKind == Kind::kSub) {
          dot[t].template add<j>(weight, a, factor, factor);
          dot[t + 1].template add<j>(weight, b, factor, factor);
        } else {
          dot[t].template add<j>(weight, a);
          dot[t + 1].template add<j>(weight, b);
        }
      });
    });
    unroll(std::make_integer_sequence<int, kTokens>{}, [&](auto token) {
      constexpr int t = decltype(token)::value;
      if constexpr (Format::kKind == Kind::kSigned) {
        const std::int16_t halves[2] = {0, 0};
        i32_store(sums[t], dot[t].sum(halves));
      } else {
        i32_store(sums[t], dot[t].sum());
      }
    });
    asm volatile("" : : "r"(sums) : "memory");
  }
  return static_cast<double>(rounds) * kTileRows * kGroup * kTokens;
}

double peak_float(int rounds) {
  // Twelve registers of AVX2: enough chains to hide the latency of fma.
  constexpr int kSums = 6;
  constexpr int kSteps = 32;
  f32x16 sums[kSums];
  for (f32x16& sum : sums) sum = f32_zero();
  const f32x16 a = f32_splat(1.0f);
  const f32x16 b = f32_splat(0.5f);
  for (int round = 0; round < rounds; ++round) {
    for (int step = 0; step < kSteps; ++step) {
      unroll(std::make_integer_sequence<int, kSums>{}, [&](auto index) {
        constexpr int i = decltype(index)::value;
        sums[i] = fma(a, b, sums[i]);
      });
    }
  }
  f32x16 total = sums[0];
  for (int i = 1; i < kSums; ++i) total = total + sums[i];
  volatile float sink = reduce_add(total);
  (void)sink;
  return static_cast<double>(rounds) * kSteps * kSums * kTileRows;
}

std::uint32_t read_memory(const std::uint8_t* data, std::size_t bytes) {
  // Two streams: memory serves them at the same time.
  const std::uint8_t* other = data + bytes / 2;
  constexpr int kSums = 4;
  b64 sums[kSums];
  for (b64& sum : sums) sum = b64_splat(0);
  for (std::size_t i = 0; i < bytes / 2; i += 128) {
    unroll(std::make_integer_sequence<int, kSums>{}, [&](auto index) {
      constexpr int k = decltype(index)::value;
      sums[k] = sums[k] ^ b64_load((k < 2 ? data : other) + i + 64 * (k % 2));
    });
  }
  alignas(64) std::uint32_t lanes[kTileRows];
  b64_store(lanes, (sums[0] ^ sums[1]) ^ (sums[2] ^ sums[3]));
  return lanes[0];
}

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
