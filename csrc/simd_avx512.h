// Vector operations for AVX-512 (F, BW, DQ, VL) with VNNI: 16 lanes are one register. See simd.h.
#pragma once

#include <immintrin.h>

namespace tidemill::TIDEMILL_ISA {
namespace {

// 32 registers hold the sums and accumulators of eight tokens, enough chains for the latency of
// vpdpbusd on two ports.
inline constexpr int kDirectTokens = 8;
inline constexpr int kCheapPasses = 32;
inline constexpr int kStagedTokens = 8;
inline constexpr int kFloatTokens = 8;
// Chains enough for any latency; multiplications take factors from memory at no cost.
inline constexpr int kAttendSums = 12;
inline constexpr int kKeptFactors = 0;

struct f32x16 {
  __m512 v;
};
struct i32x16 {
  __m512i v;
};
struct b64 {
  __m512i v;
};
struct mask16 {
  __mmask16 v;
};

// ---- float32

TIDEMILL_INLINE f32x16 f32_splat(float x) { return {_mm512_set1_ps(x)}; }
TIDEMILL_INLINE f32x16 f32_zero() { return {_mm512_setzero_ps()}; }
TIDEMILL_INLINE f32x16 f32_load(const float* p) { return {_mm512_loadu_ps(p)}; }
TIDEMILL_INLINE void f32_store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
TIDEMILL_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
TIDEMILL_INLINE f32x16 f32_load_n(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
TIDEMILL_INLINE void f32_store_n(float* p, f32x16 a, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a.v);
}
TIDEMILL_INLINE f32x16 f32_load_f16(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
TIDEMILL_INLINE void f32_store_f16(std::uint16_t* p, f32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TIDEMILL_INLINE f32x16 f32_load_bf16(const std::uint16_t* p) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
TIDEMILL_INLINE f32x16 f32_load_bf16_split(const std::uint16_t* p) { return f32_load_bf16(p); }
TIDEMILL_INLINE f32x16 f32_unsplit(f32x16 v) { return v; }
TIDEMILL_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
TIDEMILL_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
TIDEMILL_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
TIDEMILL_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
TIDEMILL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
TIDEMILL_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
TIDEMILL_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
TIDEMILL_INLINE f32x16 abs(f32x16 a) { return {_mm512_abs_ps(a.v)}; }
TIDEMILL_INLINE f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
TIDEMILL_INLINE float reduce_add(f32x16 a) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
TIDEMILL_INLINE float reduce_max(f32x16 a) {
  const __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}
TIDEMILL_INLINE mask16 less(f32x16 a, f32x16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
TIDEMILL_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) {
  return {_mm512_mask_blend_ps(m.v, b.v, a.v)};
}

// ---- int32

TIDEMILL_INLINE i32x16 i32_splat(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
TIDEMILL_INLINE i32x16 i32_load(const void* p) { return {_mm512_loadu_si512(p)}; }
TIDEMILL_INLINE void i32_store(void* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
TIDEMILL_INLINE i32x16 i32_load_u8(const std::uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
TIDEMILL_INLINE i32x16 i32_load_i8(const std::uint8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
TIDEMILL_INLINE i32x16 operator+(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
TIDEMILL_INLINE i32x16 operator-(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
TIDEMILL_INLINE i32x16 operator&(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
TIDEMILL_INLINE i32x16 operator|(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
TIDEMILL_INLINE i32x16 i32_max(i32x16 a, i32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
TIDEMILL_INLINE std::int32_t reduce_add(i32x16 a) { return _mm512_reduce_add_epi32(a.v); }
TIDEMILL_INLINE std::int32_t reduce_max(i32x16 a) { return _mm512_reduce_max_epi32(a.v); }
template <int n>
TIDEMILL_INLINE i32x16 shift_left(i32x16 a) {
  return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
TIDEMILL_INLINE i32x16 shift_right(i32x16 a) {
  return {_mm512_srli_epi32(a.v, n)};
}
TIDEMILL_INLINE f32x16 to_f32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
TIDEMILL_INLINE i32x16 round_to_i32(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
TIDEMILL_INLINE f32x16 as_f32(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
TIDEMILL_INLINE i32x16 as_i32(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
TIDEMILL_INLINE void store_i8(std::int8_t* p, i32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

// ---- 16 rows of 4 bytes

TIDEMILL_INLINE b64 b64_load(const void* p) { return {_mm512_loadu_si512(p)}; }
TIDEMILL_INLINE void b64_store(void* p, b64 a) { _mm512_storeu_si512(p, a.v); }
TIDEMILL_INLINE b64 b64_splat(int x) { return {_mm512_set1_epi8(static_cast<char>(x))}; }
TIDEMILL_INLINE b64 b64_quad(const void* p) {
  std::int32_t quad;
  std::memcpy(&quad, p, 4);
  return {_mm512_set1_epi32(quad)};
}
TIDEMILL_INLINE b64 b64_table(const void* p) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
TIDEMILL_INLINE b64 operator&(b64 a, b64 b) { return {_mm512_and_si512(a.v, b.v)}; }
TIDEMILL_INLINE b64 operator|(b64 a, b64 b) { return {_mm512_or_si512(a.v, b.v)}; }
TIDEMILL_INLINE b64 operator^(b64 a, b64 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int n>
TIDEMILL_INLINE b64 shift_left16(b64 a) {
  return {_mm512_slli_epi16(a.v, n)};
}
template <int n>
TIDEMILL_INLINE b64 shift_right16(b64 a) {
  return {_mm512_srli_epi16(a.v, n)};
}
TIDEMILL_INLINE b64 lookup16(b64 table, b64 index) {
  return {_mm512_shuffle_epi8(table.v, index.v)};
}
TIDEMILL_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

// ---- integer dot products over one group
//
// vpdpbusd multiplies unsigned by signed bytes and adds the four products of a lane to int32 without
// saturation. Sums over a group stay below 2^21.

// Each lane of `pairs` holds two int16 (low, high): low * two[0] + high * two[1].
TIDEMILL_INLINE i32x16 pair_dot(i32x16 pairs, const std::int16_t* two) {
  return {_mm512_madd_epi16(pairs.v, b64_quad(two).v)};
}

// An int16 factor, as DotSub wants it.
TIDEMILL_INLINE i32x16 sub_factor(i32x16 factor) { return factor; }

template <int kMax>
struct DotU {
  static_assert(kMax <= 255);
  __m512i total = _mm512_setzero_si512();

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a) {
    total = _mm512_dpbusd_epi32(total, w.v, a.v);
  }
  TIDEMILL_INLINE i32x16 sum() const { return {total}; }
};

// Signed weights are moved to unsigned by 128, and 128 times the activations' sum is taken off.
struct DotS {
  __m512i total = _mm512_setzero_si512();

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a) {
    total = _mm512_dpbusd_epi32(total, (w ^ b64_splat(0x80)).v, a.v);
  }
  TIDEMILL_INLINE i32x16 sum(const std::int16_t* sums) const {
    return {_mm512_sub_epi32(total, _mm512_set1_epi32(128 * (sums[0] + sums[1])))};
  }
};

template <int kMax>
struct DotSub {
  static_assert(kMax <= 255);
  __m512i half = _mm512_setzero_si512();
  __m512i total = _mm512_setzero_si512();

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a, i32x16 factor_lo, i32x16 factor_hi) {
    half = _mm512_dpbusd_epi32(half, w.v, a.v);
    if constexpr (kQuad % 4 == 3) {
      const __m512i factor = kQuad == 3 ? factor_lo.v : factor_hi.v;
      total = _mm512_add_epi32(total, _mm512_mullo_epi32(half, factor));
      half = _mm512_setzero_si512();
    }
  }
  TIDEMILL_INLINE i32x16 sum() const { return {total}; }
};

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
