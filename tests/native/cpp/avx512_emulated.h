// The AVX-512 intrinsics that simd_avx512.h uses, for a CPU with AVX2 only: lane by lane, from the
// instruction set reference. Each name is redirected by a macro after the compiler's own header, so
// that csrc/simd_avx512.h compiles unchanged and its logic can be tested anywhere.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

using F32 = float __attribute__((vector_size(64)));
using I32 = std::int32_t __attribute__((vector_size(64)));
using U32 = std::uint32_t __attribute__((vector_size(64)));
using U16 = std::uint16_t __attribute__((vector_size(64)));
using Bytes = std::uint8_t __attribute__((vector_size(64)));

template <class To, class From>
inline To as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// One lane after another; `f` takes the lane number.
template <class F>
inline __m512 floats(F f) {
  F32 r{};
  for (int i = 0; i < 16; ++i) r[i] = f(i);
  return as<__m512>(r);
}
template <class F>
inline __m512i ints(F f) {
  I32 r{};
  for (int i = 0; i < 16; ++i) r[i] = f(i);
  return as<__m512i>(r);
}
inline float lane(__m512 v, int i) { return as<F32>(v)[i]; }
inline std::int32_t lane(__m512i v, int i) { return as<I32>(v)[i]; }
inline std::int32_t wrap(std::int64_t x) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(x));
}

inline __m512 abs_ps(__m512 a) {
  return floats([&](int i) { return std::fabs(lane(a, i)); });
}
inline __m512 add_ps(__m512 a, __m512 b) { return as<__m512>(as<F32>(a) + as<F32>(b)); }
inline __m512 sub_ps(__m512 a, __m512 b) { return as<__m512>(as<F32>(a) - as<F32>(b)); }
inline __m512 mul_ps(__m512 a, __m512 b) { return as<__m512>(as<F32>(a) * as<F32>(b)); }
inline __m512 div_ps(__m512 a, __m512 b) { return as<__m512>(as<F32>(a) / as<F32>(b)); }
inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return floats([&](int i) { return std::fma(lane(a, i), lane(b, i), lane(c, i)); });
}
inline __m512 sqrt_ps(__m512 a) {
  return floats([&](int i) { return std::sqrt(lane(a, i)); });
}
// The second operand where either is a NaN, as the instruction does.
inline __m512 min_ps(__m512 a, __m512 b) {
  return floats([&](int i) { return lane(a, i) < lane(b, i) ? lane(a, i) : lane(b, i); });
}
inline __m512 max_ps(__m512 a, __m512 b) {
  return floats([&](int i) { return lane(a, i) > lane(b, i) ? lane(a, i) : lane(b, i); });
}
inline __mmask16 less_mask(__m512 a, __m512 b) {
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) mask |= (lane(a, i) < lane(b, i) ? 1u : 0u) << i;
  return static_cast<__mmask16>(mask);
}
inline __m512 mask_blend_ps(__mmask16 m, __m512 a, __m512 b) {
  return floats([&](int i) { return (m >> i & 1) != 0 ? lane(b, i) : lane(a, i); });
}
inline __m512 set1_ps(float x) {
  return floats([&](int) { return x; });
}
inline __m512 setzero_ps() { return set1_ps(0.0f); }
inline __m512 loadu_ps(const void* p) {
  __m512 r;
  std::memcpy(&r, p, sizeof r);
  return r;
}
inline void storeu_ps(void* p, __m512 a) { std::memcpy(p, &a, sizeof a); }
// Masked-out lanes are neither read nor written.
inline __m512 maskz_loadu_ps(__mmask16 m, const float* p) {
  return floats([&](int i) { return (m >> i & 1) != 0 ? p[i] : 0.0f; });
}
inline void mask_storeu_ps(float* p, __mmask16 m, __m512 a) {
  for (int i = 0; i < 16; ++i) {
    if ((m >> i & 1) != 0) p[i] = lane(a, i);
  }
}
inline __m256 extractf32x8_ps(__m512 a, int half) {
  __m256 r;
  std::memcpy(&r, reinterpret_cast<const char*>(&a) + 32 * half, sizeof r);
  return r;
}
inline __m512 cvtph_ps(__m256i h) {
  __m256 parts[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                     _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
  return loadu_ps(parts);
}
inline __m256i cvtps_ph_nearest(__m512 a) {
  return _mm256_set_m128i(_mm256_cvtps_ph(extractf32x8_ps(a, 1), 0),
                          _mm256_cvtps_ph(extractf32x8_ps(a, 0), 0));
}

inline __m512i set1_epi32(std::int32_t x) {
  return ints([&](int) { return x; });
}
inline __m512i set1_epi8(char x) { return set1_epi32(wrap(0x01010101LL * (x & 0xFF))); }
inline __m512i setzero_si512() { return set1_epi32(0); }
inline __m512i loadu_si512(const void* p) { return as<__m512i>(loadu_ps(p)); }
inline void storeu_si512(void* p, __m512i a) { std::memcpy(p, &a, sizeof a); }
inline __m512i add_epi32(__m512i a, __m512i b) { return as<__m512i>(as<U32>(a) + as<U32>(b)); }
inline __m512i sub_epi32(__m512i a, __m512i b) { return as<__m512i>(as<U32>(a) - as<U32>(b)); }
inline __m512i and_si512(__m512i a, __m512i b) { return as<__m512i>(as<U32>(a) & as<U32>(b)); }
inline __m512i or_si512(__m512i a, __m512i b) { return as<__m512i>(as<U32>(a) | as<U32>(b)); }
inline __m512i xor_si512(__m512i a, __m512i b) { return as<__m512i>(as<U32>(a) ^ as<U32>(b)); }
inline __m512i slli_epi32(__m512i a, unsigned n) { return as<__m512i>(as<U32>(a) << n); }
inline __m512i srli_epi32(__m512i a, unsigned n) { return as<__m512i>(as<U32>(a) >> n); }
inline __m512i slli_epi16(__m512i a, unsigned n) { return as<__m512i>(as<U16>(a) << n); }
inline __m512i srli_epi16(__m512i a, unsigned n) { return as<__m512i>(as<U16>(a) >> n); }
inline __m512i max_epi32(__m512i a, __m512i b) {
  return ints([&](int i) { return lane(a, i) > lane(b, i) ? lane(a, i) : lane(b, i); });
}
inline std::int32_t reduce_add_epi32(__m512i a) {
  std::int64_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += lane(a, i);
  return wrap(sum);
}
inline std::int32_t reduce_max_epi32(__m512i a) {
  std::int32_t most = lane(a, 0);
  for (int i = 1; i < 16; ++i) most = lane(a, i) > most ? lane(a, i) : most;
  return most;
}
inline __m512i mullo_epi32(__m512i a, __m512i b) {
  return ints([&](int i) { return wrap(std::int64_t{lane(a, i)} * lane(b, i)); });
}
inline __m512 cvtepi32_ps(__m512i a) {
  return floats([&](int i) { return static_cast<float>(lane(a, i)); });
}
// Out of range and NaN give the "integer indefinite" value.
inline __m512i cvtps_epi32(__m512 a) {
  return ints([&](int i) {
    const float x = std::nearbyint(lane(a, i));
    return x >= -0x1p31f && x < 0x1p31f ? static_cast<std::int32_t>(x) : INT32_MIN;
  });
}
inline __m512i cvtepu8_epi32(__m128i a) {
  const auto bytes = as<std::uint8_t __attribute__((vector_size(16)))>(a);
  return ints([&](int i) { return static_cast<std::int32_t>(bytes[i]); });
}
inline __m512i cvtepi8_epi32(__m128i a) {
  const auto bytes = as<std::int8_t __attribute__((vector_size(16)))>(a);
  return ints([&](int i) { return static_cast<std::int32_t>(bytes[i]); });
}
inline __m512i cvtepu16_epi32(__m256i a) {
  const auto words = as<std::uint16_t __attribute__((vector_size(32)))>(a);
  return ints([&](int i) { return static_cast<std::int32_t>(words[i]); });
}
inline __m128i cvtepi32_epi8(__m512i a) {  // truncates
  std::uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<std::uint8_t>(lane(a, i));
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}
inline __m512i broadcast_i32x4(__m128i a) {
  const __m128i four[4] = {a, a, a, a};
  return loadu_si512(four);
}
// Within each 16 bytes; a set top bit of an index gives zero.
inline __m512i shuffle_epi8(__m512i table, __m512i index) {
  const auto from = as<Bytes>(table);
  const auto at = as<Bytes>(index);
  Bytes r{};
  for (int i = 0; i < 64; ++i) {
    r[i] = (at[i] & 0x80) != 0 ? std::uint8_t{0} : from[i / 16 * 16 + (at[i] & 15)];
  }
  return as<__m512i>(r);
}
inline __m512i madd_epi16(__m512i a, __m512i b) {
  return ints([&](int i) {
    const auto low = [](std::int32_t x) { return static_cast<std::int16_t>(x & 0xFFFF); };
    return wrap(std::int64_t{low(lane(a, i))} * low(lane(b, i)) +
                std::int64_t{lane(a, i) >> 16} * (lane(b, i) >> 16));
  });
}
// Four products of unsigned bytes of `a` and signed bytes of `b`, added to `sum` without saturation.
inline __m512i dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  const auto u = as<Bytes>(a);
  const auto s = as<Bytes>(b);
  return ints([&](int i) {
    std::int64_t total = lane(sum, i);
    for (int c = 0; c < 4; ++c) total += u[4 * i + c] * static_cast<std::int8_t>(s[4 * i + c]);
    return wrap(total);
  });
}

}  // namespace emulated

#define _mm512_abs_ps emulated::abs_ps
#define _mm512_add_epi32 emulated::add_epi32
#define _mm512_add_ps emulated::add_ps
#define _mm512_and_si512 emulated::and_si512
#define _mm512_broadcast_i32x4 emulated::broadcast_i32x4
#define _mm512_castps512_ps256(a) emulated::extractf32x8_ps(a, 0)
#define _mm512_castps_si512(a) emulated::as<__m512i>(a)
#define _mm512_castsi512_ps(a) emulated::as<__m512>(a)
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(a, b, predicate) emulated::less_mask(a, b)  // _CMP_LT_OQ only
#define _mm512_cvtepi32_epi8 emulated::cvtepi32_epi8
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_cvtepi8_epi32 emulated::cvtepi8_epi32
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#define _mm512_cvtepu8_epi32 emulated::cvtepu8_epi32
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_cvtps_epi32 emulated::cvtps_epi32
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(a, rounding) emulated::cvtps_ph_nearest(a)
#define _mm512_div_ps emulated::div_ps
#define _mm512_dpbusd_epi32 emulated::dpbusd_epi32
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps emulated::extractf32x8_ps
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_loadu_ps emulated::loadu_ps
#define _mm512_loadu_si512 emulated::loadu_si512
#define _mm512_madd_epi16 emulated::madd_epi16
#define _mm512_mask_blend_ps emulated::mask_blend_ps
#define _mm512_mask_storeu_ps emulated::mask_storeu_ps
#define _mm512_maskz_loadu_ps emulated::maskz_loadu_ps
#define _mm512_max_epi32 emulated::max_epi32
#define _mm512_max_ps emulated::max_ps
#define _mm512_min_ps emulated::min_ps
#define _mm512_mul_ps emulated::mul_ps
#define _mm512_mullo_epi32 emulated::mullo_epi32
#define _mm512_or_si512 emulated::or_si512
#define _mm512_reduce_add_epi32 emulated::reduce_add_epi32
#define _mm512_reduce_max_epi32 emulated::reduce_max_epi32
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_set1_epi8 emulated::set1_epi8
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_setzero_ps emulated::setzero_ps
#define _mm512_setzero_si512 emulated::setzero_si512
#define _mm512_shuffle_epi8 emulated::shuffle_epi8
#define _mm512_slli_epi16 emulated::slli_epi16
#define _mm512_slli_epi32 emulated::slli_epi32
#define _mm512_sqrt_ps emulated::sqrt_ps
#define _mm512_srli_epi16 emulated::srli_epi16
#define _mm512_srli_epi32 emulated::srli_epi32
#define _mm512_storeu_ps emulated::storeu_ps
#define _mm512_storeu_si512 emulated::storeu_si512
#define _mm512_sub_epi32 emulated::sub_epi32
#define _mm512_sub_ps emulated::sub_ps
#define _mm512_xor_si512 emulated::xor_si512
