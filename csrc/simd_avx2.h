// Vector operations for AVX2 with FMA and F16C: 16 lanes are two 256-bit registers. See simd.h.
#pragma once

#include <immintrin.h>

namespace tidemill::TIDEMILL_ISA {
namespace {

// Per token two registers of int16 sums; three to six tokens run alike, less than three are slower.
inline constexpr int kDirectTokens = 4;
inline constexpr int kCheapPasses = 4;
inline constexpr int kStagedTokens = 4;
// Six tokens' accumulators of two registers, the weights and one broadcast fill sixteen registers.
inline constexpr int kFloatTokens = 6;
// Six sums of two registers and a tile leave two for the factors of a tile's rows.
inline constexpr int kAttendSums = 6;
inline constexpr int kKeptFactors = 2;

struct f32x16 {
  __m256 lo, hi;
};
struct i32x16 {
  __m256i lo, hi;
};
struct b64 {
  __m256i lo, hi;
};
struct mask16 {
  __m256 lo, hi;
};

// ---- float32

TIDEMILL_INLINE f32x16 f32_splat(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
TIDEMILL_INLINE f32x16 f32_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TIDEMILL_INLINE f32x16 f32_load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
TIDEMILL_INLINE void f32_store(float* p, f32x16 v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
// Lanes [0, n) as a load/store mask, for the eight lanes that start at `first`.
TIDEMILL_INLINE __m256i first_lanes(int n, int first) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - first), lane);
}
TIDEMILL_INLINE f32x16 f32_load_n(const float* p, int n) {
  return {_mm256_maskload_ps(p, first_lanes(n, 0)), _mm256_maskload_ps(p + 8, first_lanes(n, 8))};
}
TIDEMILL_INLINE void f32_store_n(float* p, f32x16 v, int n) {
  _mm256_maskstore_ps(p, first_lanes(n, 0), v.lo);
  _mm256_maskstore_ps(p + 8, first_lanes(n, 8), v.hi);
}
TIDEMILL_INLINE f32x16 f32_load_f16(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
TIDEMILL_INLINE void f32_store_f16(std::uint16_t* p, f32x16 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                   _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TIDEMILL_INLINE f32x16 f32_load_bf16(const std::uint16_t* p) {
  const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i hi =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
// A split vector holds the even lanes, then the odd ones: 16 bfloat16 are loaded in two operations.
TIDEMILL_INLINE f32x16 f32_load_bf16_split(const std::uint16_t* p) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-65536)))};
}
TIDEMILL_INLINE f32x16 f32_unsplit(f32x16 v) {
  const __m256 low = _mm256_unpacklo_ps(v.lo, v.hi);   // lanes 0-3, 8-11
  const __m256 high = _mm256_unpackhi_ps(v.lo, v.hi);  // lanes 4-7, 12-15
  return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
TIDEMILL_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
TIDEMILL_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
TIDEMILL_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
TIDEMILL_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
TIDEMILL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
TIDEMILL_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
TIDEMILL_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
TIDEMILL_INLINE f32x16 abs(f32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
TIDEMILL_INLINE f32x16 sqrt(f32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
TIDEMILL_INLINE float reduce_add(f32x16 v) {
  const __m256 s8 = _mm256_add_ps(v.lo, v.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
TIDEMILL_INLINE float reduce_max(f32x16 v) {
  const __m256 s8 = _mm256_max_ps(v.lo, v.hi);
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}
TIDEMILL_INLINE mask16 less(f32x16 a, f32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
TIDEMILL_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}

// ---- int32

TIDEMILL_INLINE i32x16 i32_splat(std::int32_t x) {
  const __m256i v = _mm256_set1_epi32(x);
  return {v, v};
}
TIDEMILL_INLINE i32x16 i32_load(const void* p) {
  const auto* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
TIDEMILL_INLINE void i32_store(void* p, i32x16 a) {
  auto* v = static_cast<__m256i*>(p);
  _mm256_storeu_si256(v, a.lo);
  _mm256_storeu_si256(v + 1, a.hi);
}
TIDEMILL_INLINE i32x16 i32_load_u8(const std::uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
TIDEMILL_INLINE i32x16 i32_load_i8(const std::uint8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
TIDEMILL_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
TIDEMILL_INLINE i32x16 operator-(i32x16 a, i32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
TIDEMILL_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
TIDEMILL_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
TIDEMILL_INLINE i32x16 i32_max(i32x16 a, i32x16 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
TIDEMILL_INLINE std::int32_t reduce_add(i32x16 v) {
  const __m256i s8 = _mm256_add_epi32(v.lo, v.hi);
  const __m128i s4 = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
  const __m128i s2 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s2, _mm_shuffle_epi32(s2, 0xB1)));
}
TIDEMILL_INLINE std::int32_t reduce_max(i32x16 v) {
  const __m256i s8 = _mm256_max_epi32(v.lo, v.hi);
  const __m128i s4 = _mm_max_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
  const __m128i s2 = _mm_max_epi32(s4, _mm_shuffle_epi32(s4, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(s2, _mm_shuffle_epi32(s2, 0xB1)));
}
template <int n>
TIDEMILL_INLINE i32x16 shift_left(i32x16 a) {
  return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
template <int n>
TIDEMILL_INLINE i32x16 shift_right(i32x16 a) {
  return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)};
}
TIDEMILL_INLINE f32x16 to_f32(i32x16 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
TIDEMILL_INLINE i32x16 round_to_i32(f32x16 a) {
  return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
TIDEMILL_INLINE f32x16 as_f32(i32x16 a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
TIDEMILL_INLINE i32x16 as_i32(f32x16 a) {
  return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
TIDEMILL_INLINE void store_i8(std::int8_t* p, i32x16 a) {
  // packs works within 128-bit halves: bring the four quarters back into order.
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

// ---- 16 rows of 4 bytes

TIDEMILL_INLINE b64 b64_load(const void* p) {
  const auto* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
TIDEMILL_INLINE void b64_store(void* p, b64 a) {
  auto* v = static_cast<__m256i*>(p);
  _mm256_storeu_si256(v, a.lo);
  _mm256_storeu_si256(v + 1, a.hi);
}
TIDEMILL_INLINE b64 b64_splat(int x) {
  const __m256i v = _mm256_set1_epi8(static_cast<char>(x));
  return {v, v};
}
TIDEMILL_INLINE b64 b64_quad(const void* p) {
  std::int32_t quad;
  std::memcpy(&quad, p, 4);
  const __m256i v = _mm256_set1_epi32(quad);
  return {v, v};
}
TIDEMILL_INLINE b64 b64_table(const void* p) {
  const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return {v, v};
}
TIDEMILL_INLINE b64 operator&(b64 a, b64 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
TIDEMILL_INLINE b64 operator|(b64 a, b64 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
TIDEMILL_INLINE b64 operator^(b64 a, b64 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
template <int n>
TIDEMILL_INLINE b64 shift_left16(b64 a) {
  return {_mm256_slli_epi16(a.lo, n), _mm256_slli_epi16(a.hi, n)};
}
template <int n>
TIDEMILL_INLINE b64 shift_right16(b64 a) {
  return {_mm256_srli_epi16(a.lo, n), _mm256_srli_epi16(a.hi, n)};
}
TIDEMILL_INLINE b64 lookup16(b64 table, b64 index) {
  return {_mm256_shuffle_epi8(table.lo, index.lo), _mm256_shuffle_epi8(table.hi, index.hi)};
}
TIDEMILL_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

// ---- integer dot products over one group: 8 quads of 4 columns, activations |a| <= 127
//
// vpmaddubsw multiplies unsigned by signed bytes and adds pairs with saturation to int16. With
// weights in [0, max] one step gives at most 2 * 127 * max in magnitude, so up to
// 32767 / (254 * max) steps can be summed in int16 before they are widened to int32: 8 for max = 15
// (30480: the whole group), 4 for 31 (31496), 2 for 63 (32004).

// Keeps a running sum where it is: without it GCC rebalances the additions of a whole group into a
// tree, and spills two dozen registers for it.
TIDEMILL_INLINE void pin(__m256i& v) { asm("" : "+x"(v)); }
// The same for four, which are also all computed before whatever comes behind the next pin.
TIDEMILL_INLINE void pin(__m256i& a, __m256i& b, __m256i& c, __m256i& d) {
  asm volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d));
}

template <int kMax, int kMost>
inline constexpr int kInt16Steps = 32767 / (254 * kMax) >= kMost ? kMost : 32767 / (254 * kMax);

TIDEMILL_INLINE b64 products_u(b64 w, b64 a) {
  return {_mm256_maddubs_epi16(w.lo, a.lo), _mm256_maddubs_epi16(w.hi, a.hi)};
}
// One step of int16 sums, of two tokens or one. All products come before all sums: the other way is
// slower (Zen 3). Member by member: GCC copies whole pairs through memory here.
template <bool kFirst>
TIDEMILL_INLINE void add_parts(b64& x, b64& y, b64 w, b64 a, b64 b) {
  __m256i x_lo = _mm256_maddubs_epi16(w.lo, a.lo);
  __m256i y_lo = _mm256_maddubs_epi16(w.lo, b.lo);
  __m256i x_hi = _mm256_maddubs_epi16(w.hi, a.hi);
  __m256i y_hi = _mm256_maddubs_epi16(w.hi, b.hi);
  pin(x_lo, y_lo, x_hi, y_hi);
  if constexpr (!kFirst) {
    x_lo = _mm256_add_epi16(x.lo, x_lo);
    y_lo = _mm256_add_epi16(y.lo, y_lo);
    x_hi = _mm256_add_epi16(x.hi, x_hi);
    y_hi = _mm256_add_epi16(y.hi, y_hi);
    pin(x_lo, y_lo, x_hi, y_hi);
  }
  x.lo = x_lo;
  y.lo = y_lo;
  x.hi = x_hi;
  y.hi = y_hi;
}
template <bool kFirst>
TIDEMILL_INLINE void add_part(b64& part, b64 w, b64 a) {
  __m256i lo = _mm256_maddubs_epi16(w.lo, a.lo);
  __m256i hi = _mm256_maddubs_epi16(w.hi, a.hi);
  if constexpr (!kFirst) {
    lo = _mm256_add_epi16(part.lo, lo);
    hi = _mm256_add_epi16(part.hi, hi);
  }
  pin(lo);
  pin(hi);
  part.lo = lo;
  part.hi = hi;
}
TIDEMILL_INLINE i32x16 madd16(b64 a, b64 b) {
  return {_mm256_madd_epi16(a.lo, b.lo), _mm256_madd_epi16(a.hi, b.hi)};
}
TIDEMILL_INLINE b64 ones16() {
  const __m256i v = _mm256_set1_epi16(1);
  return {v, v};
}

// Each lane of `pairs` holds two int16 (low, high): low * two[0] + high * two[1].
TIDEMILL_INLINE i32x16 pair_dot(i32x16 pairs, const std::int16_t* two) {
  return madd16({pairs.lo, pairs.hi}, b64_quad(two));
}

// An int16 factor, as DotSub wants it.
TIDEMILL_INLINE i32x16 sub_factor(i32x16 factor) {
  return (factor & i32_splat(0xFFFF)) | shift_left<16>(factor);
}

template <int kMax>
struct DotU {
  static constexpr int kSteps = kInt16Steps<kMax, 8>;
  static_assert(kSteps == 8 || kSteps == 4 || kSteps == 2);
  b64 part = b64_splat(0);
  i32x16 total = i32_splat(0);

  // Quads come in order, 0 to 7.
  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a) {
    add_part<kQuad % kSteps == 0>(part, w, a);
    if constexpr (kQuad % kSteps == kSteps - 1) widen();
  }
  TIDEMILL_INLINE i32x16 sum() const { return total; }

  // Two tokens at once, and what goes with it: an int16 sum that lasts for the whole group is
  // widened only where it is scaled, one register after the other. With unpacked weights this
  // spills less; packed ones leave too few registers for it.
  template <int kQuad>
  static TIDEMILL_INLINE void add_two(DotU& x, DotU& y, b64 w, b64 a, b64 b) {
    add_parts<kQuad % kSteps == 0>(x.part, y.part, w, a, b);
    if constexpr (kSteps < 8 && kQuad % kSteps == kSteps - 1) {
      x.widen();
      y.widen();
    }
  }
  // acc += sum * scale, behind add_two().
  TIDEMILL_INLINE void add_scaled(f32x16& acc, f32x16 scale) const {
    acc.lo = _mm256_fmadd_ps(_mm256_cvtepi32_ps(late_lo()), scale.lo, acc.lo);
    acc.hi = _mm256_fmadd_ps(_mm256_cvtepi32_ps(late_hi()), scale.hi, acc.hi);
  }
  // acc += (sum + offset) * scale, behind add_two().
  TIDEMILL_INLINE void add_scaled(f32x16& acc, f32x16 scale, i32x16 offset) const {
    const __m256i lo = _mm256_add_epi32(late_lo(), offset.lo);
    acc.lo = _mm256_fmadd_ps(_mm256_cvtepi32_ps(lo), scale.lo, acc.lo);
    const __m256i hi = _mm256_add_epi32(late_hi(), offset.hi);
    acc.hi = _mm256_fmadd_ps(_mm256_cvtepi32_ps(hi), scale.hi, acc.hi);
  }

 private:
  TIDEMILL_INLINE void widen() { total = total + madd16(part, ones16()); }
  TIDEMILL_INLINE __m256i late_lo() const {
    return kSteps == 8 ? _mm256_madd_epi16(part.lo, _mm256_set1_epi16(1)) : total.lo;
  }
  TIDEMILL_INLINE __m256i late_hi() const {
    return kSteps == 8 ? _mm256_madd_epi16(part.hi, _mm256_set1_epi16(1)) : total.hi;
  }
};

// Signed weights: |w| <= 128 is multiplied by the activation with the weight's sign. One step is at
// most 2 * 128 * 127 = 32512, so every step is widened at once.
struct DotS {
  b64 total = b64_splat(0);  // int32 lanes

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a) {
    const b64 magnitude = {_mm256_abs_epi8(w.lo), _mm256_abs_epi8(w.hi)};
    const b64 turned = {_mm256_sign_epi8(a.lo, w.lo), _mm256_sign_epi8(a.hi, w.hi)};
    const i32x16 wide = madd16(products_u(magnitude, turned), ones16());
    total.lo = _mm256_add_epi32(total.lo, wide.lo);
    total.hi = _mm256_add_epi32(total.hi, wide.hi);
    pin(total.lo);
    pin(total.hi);
  }
  // `sums` are the block's sum_lo and sum_hi (not needed here).
  TIDEMILL_INLINE i32x16 sum(const std::int16_t*) const { return {total.lo, total.hi}; }
};

// As DotU, the widening multiplication also applies the factor of each half group.
template <int kMax>
struct DotSub {
  static constexpr int kSteps = kInt16Steps<kMax, 4>;
  static_assert(kSteps == 4 || kSteps == 2);
  b64 part = b64_splat(0);
  i32x16 total = i32_splat(0);

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a, i32x16 factor_lo, i32x16 factor_hi) {
    add_part<kQuad % kSteps == 0>(part, w, a);
    if constexpr (kQuad % kSteps == kSteps - 1) {
      if constexpr (kQuad < 4) {
        total = total + madd16(part, {factor_lo.lo, factor_lo.hi});
      } else {
        total = total + madd16(part, {factor_hi.lo, factor_hi.hi});
      }
    }
  }
  TIDEMILL_INLINE i32x16 sum() const { return total; }
};

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
