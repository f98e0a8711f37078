// Vector operations for NEON with the dot product and half-precision extensions: 16 lanes are four
// 128-bit registers. See simd.h.
#pragma once

#include <arm_neon.h>

#include <utility>

namespace tidemill::TIDEMILL_ISA {
namespace {

// Per token four registers of sums and four of accumulators, of 32.
inline constexpr int kDirectTokens = 4;
inline constexpr int kCheapPasses = 4;
inline constexpr int kStagedTokens = 4;
inline constexpr int kFloatTokens = 6;
inline constexpr int kAttendSums = 4;
inline constexpr int kKeptFactors = 6;

struct f32x16 {
  float32x4_t v[4];
};
struct i32x16 {
  int32x4_t v[4];
};
struct b64 {
  uint8x16_t v[4];
};
struct mask16 {
  uint32x4_t v[4];
};

// A result whose four registers are `expression` of q = 0 .. 3.
#define TIDEMILL_QUARTERS(Result, expression)                  \
  [&]<int... q>(std::integer_sequence<int, q...>) {            \
    return Result{{(expression)...}};                          \
  }(std::make_integer_sequence<int, 4>{})

// ---- float32

TIDEMILL_INLINE f32x16 f32_splat(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {{v, v, v, v}};
}
TIDEMILL_INLINE f32x16 f32_zero() { return f32_splat(0.0f); }
TIDEMILL_INLINE f32x16 f32_load(const float* p) {
  return TIDEMILL_QUARTERS(f32x16, vld1q_f32(p + 4 * q));
}
TIDEMILL_INLINE void f32_store(float* p, f32x16 a) {
  for (int q = 0; q < 4; ++q) vst1q_f32(p + 4 * q, a.v[q]);
}
TIDEMILL_INLINE f32x16 f32_load_n(const float* p, int n) {
  float lanes[16] = {};
  std::memcpy(lanes, p, static_cast<std::size_t>(n) * sizeof(float));
  return f32_load(lanes);
}
TIDEMILL_INLINE void f32_store_n(float* p, f32x16 a, int n) {
  float lanes[16];
  f32_store(lanes, a);
  std::memcpy(p, lanes, static_cast<std::size_t>(n) * sizeof(float));
}
TIDEMILL_INLINE f32x16 f32_load_f16(const std::uint16_t* p) {
  return TIDEMILL_QUARTERS(f32x16, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * q))));
}
TIDEMILL_INLINE void f32_store_f16(std::uint16_t* p, f32x16 a) {
  for (int q = 0; q < 4; ++q) vst1_u16(p + 4 * q, vreinterpret_u16_f16(vcvt_f16_f32(a.v[q])));
}
TIDEMILL_INLINE f32x16 f32_load_bf16(const std::uint16_t* p) {
  return TIDEMILL_QUARTERS(f32x16, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * q), 16)));
}
TIDEMILL_INLINE f32x16 f32_load_bf16_split(const std::uint16_t* p) { return f32_load_bf16(p); }
TIDEMILL_INLINE f32x16 f32_unsplit(f32x16 v) { return v; }
TIDEMILL_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
  return TIDEMILL_QUARTERS(f32x16, vaddq_f32(a.v[q], b.v[q]));
}
TIDEMILL_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
  return TIDEMILL_QUARTERS(f32x16, vsubq_f32(a.v[q], b.v[q]));
}
TIDEMILL_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
  return TIDEMILL_QUARTERS(f32x16, vmulq_f32(a.v[q], b.v[q]));
}
TIDEMILL_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
  return TIDEMILL_QUARTERS(f32x16, vdivq_f32(a.v[q], b.v[q]));
}
TIDEMILL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return TIDEMILL_QUARTERS(f32x16, vfmaq_f32(c.v[q], a.v[q], b.v[q]));
}
TIDEMILL_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return TIDEMILL_QUARTERS(f32x16, vminq_f32(a.v[q], b.v[q]));
}
TIDEMILL_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return TIDEMILL_QUARTERS(f32x16, vmaxq_f32(a.v[q], b.v[q]));
}
TIDEMILL_INLINE f32x16 abs(f32x16 a) { return TIDEMILL_QUARTERS(f32x16, vabsq_f32(a.v[q])); }
TIDEMILL_INLINE f32x16 sqrt(f32x16 a) { return TIDEMILL_QUARTERS(f32x16, vsqrtq_f32(a.v[q])); }
TIDEMILL_INLINE float reduce_add(f32x16 a) {
  const float32x4_t s4 = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
  return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}
TIDEMILL_INLINE float reduce_max(f32x16 a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[2]), vmaxq_f32(a.v[1], a.v[3])));
}
TIDEMILL_INLINE mask16 less(f32x16 a, f32x16 b) {
  return TIDEMILL_QUARTERS(mask16, vcltq_f32(a.v[q], b.v[q]));
}
TIDEMILL_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) {
  return TIDEMILL_QUARTERS(f32x16, vbslq_f32(m.v[q], a.v[q], b.v[q]));
}

// ---- int32

TIDEMILL_INLINE i32x16 i32_splat(std::int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {{v, v, v, v}};
}
TIDEMILL_INLINE i32x16 i32_load(const void* p) {
  return TIDEMILL_QUARTERS(
      i32x16, vreinterpretq_s32_u8(vld1q_u8(static_cast<const std::uint8_t*>(p) + 16 * q)));
}
TIDEMILL_INLINE void i32_store(void* p, i32x16 a) {
  auto* bytes = static_cast<std::uint8_t*>(p);
  for (int q = 0; q < 4; ++q) vst1q_u8(bytes + 16 * q, vreinterpretq_u8_s32(a.v[q]));
}
TIDEMILL_INLINE i32x16 i32_load_u8(const std::uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t lo = vmovl_u8(vget_low_u8(bytes));
  const uint16x8_t hi = vmovl_u8(vget_high_u8(bytes));
  return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(lo))),
           vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(lo))),
           vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(hi))),
           vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(hi)))}};
}
TIDEMILL_INLINE i32x16 i32_load_i8(const std::uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  const int16x8_t lo = vmovl_s8(vget_low_s8(bytes));
  const int16x8_t hi = vmovl_s8(vget_high_s8(bytes));
  return {{vmovl_s16(vget_low_s16(lo)), vmovl_s16(vget_high_s16(lo)),
           vmovl_s16(vget_low_s16(hi)), vmovl_s16(vget_high_s16(hi))}};
}
TIDEMILL_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
  return TIDEMILL_QUARTERS(i32x16, vaddq_s32(a.v[q], b.v[q]));
}
TIDEMILL_INLINE i32x16 operator-(i32x16 a, i32x16 b) {
  return TIDEMILL_QUARTERS(i32x16, vsubq_s32(a.v[q], b.v[q]));
}
TIDEMILL_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
  return TIDEMILL_QUARTERS(i32x16, vandq_s32(a.v[q], b.v[q]));
}
TIDEMILL_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
  return TIDEMILL_QUARTERS(i32x16, vorrq_s32(a.v[q], b.v[q]));
}
TIDEMILL_INLINE i32x16 i32_max(i32x16 a, i32x16 b) {
  return TIDEMILL_QUARTERS(i32x16, vmaxq_s32(a.v[q], b.v[q]));
}
TIDEMILL_INLINE std::int32_t reduce_add(i32x16 a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[2]), vaddq_s32(a.v[1], a.v[3])));
}
TIDEMILL_INLINE std::int32_t reduce_max(i32x16 a) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[2]), vmaxq_s32(a.v[1], a.v[3])));
}
template <int n>
TIDEMILL_INLINE i32x16 shift_left(i32x16 a) {
  return TIDEMILL_QUARTERS(i32x16, vshlq_n_s32(a.v[q], n));
}
template <int n>
TIDEMILL_INLINE i32x16 shift_right(i32x16 a) {
  if constexpr (n == 0) return a;  // the instruction encodes 1 to 32
  else
    return TIDEMILL_QUARTERS(
        i32x16, vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v[q]), n)));
}
TIDEMILL_INLINE f32x16 to_f32(i32x16 a) {
  return TIDEMILL_QUARTERS(f32x16, vcvtq_f32_s32(a.v[q]));
}
TIDEMILL_INLINE i32x16 round_to_i32(f32x16 a) {
  return TIDEMILL_QUARTERS(i32x16, vcvtnq_s32_f32(a.v[q]));
}
TIDEMILL_INLINE f32x16 as_f32(i32x16 a) {
  return TIDEMILL_QUARTERS(f32x16, vreinterpretq_f32_s32(a.v[q]));
}
TIDEMILL_INLINE i32x16 as_i32(f32x16 a) {
  return TIDEMILL_QUARTERS(i32x16, vreinterpretq_s32_f32(a.v[q]));
}
TIDEMILL_INLINE void store_i8(std::int8_t* p, i32x16 a) {
  const int16x8_t lo = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
  const int16x8_t hi = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
}

// ---- 16 rows of 4 bytes

TIDEMILL_INLINE b64 b64_load(const void* p) {
  return TIDEMILL_QUARTERS(b64, vld1q_u8(static_cast<const std::uint8_t*>(p) + 16 * q));
}
TIDEMILL_INLINE void b64_store(void* p, b64 a) {
  for (int q = 0; q < 4; ++q) vst1q_u8(static_cast<std::uint8_t*>(p) + 16 * q, a.v[q]);
}
TIDEMILL_INLINE b64 b64_splat(int x) {
  const uint8x16_t v = vdupq_n_u8(static_cast<std::uint8_t>(x));
  return {{v, v, v, v}};
}
TIDEMILL_INLINE b64 b64_quad(const void* p) {
  std::uint32_t quad;
  std::memcpy(&quad, p, 4);
  const uint8x16_t v = vreinterpretq_u8_u32(vdupq_n_u32(quad));
  return {{v, v, v, v}};
}
TIDEMILL_INLINE b64 b64_table(const void* p) {
  const uint8x16_t v = vld1q_u8(static_cast<const std::uint8_t*>(p));
  return {{v, v, v, v}};
}
TIDEMILL_INLINE b64 operator&(b64 a, b64 b) {
  return TIDEMILL_QUARTERS(b64, vandq_u8(a.v[q], b.v[q]));
}
TIDEMILL_INLINE b64 operator|(b64 a, b64 b) {
  return TIDEMILL_QUARTERS(b64, vorrq_u8(a.v[q], b.v[q]));
}
TIDEMILL_INLINE b64 operator^(b64 a, b64 b) {
  return TIDEMILL_QUARTERS(b64, veorq_u8(a.v[q], b.v[q]));
}
template <int n>
TIDEMILL_INLINE b64 shift_left16(b64 a) {
  return TIDEMILL_QUARTERS(
      b64, vreinterpretq_u8_u16(vshlq_n_u16(vreinterpretq_u16_u8(a.v[q]), n)));
}
template <int n>
TIDEMILL_INLINE b64 shift_right16(b64 a) {
  if constexpr (n == 0) return a;  // the instruction encodes 1 to 16
  else
    return TIDEMILL_QUARTERS(
        b64, vreinterpretq_u8_u16(vshrq_n_u16(vreinterpretq_u16_u8(a.v[q]), n)));
}
TIDEMILL_INLINE b64 lookup16(b64 table, b64 index) {
  return TIDEMILL_QUARTERS(b64, vqtbl1q_u8(table.v[q], index.v[q]));
}
TIDEMILL_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

// ---- integer dot products over one group
//
// sdot multiplies signed by signed bytes and adds the four products of a lane to int32. Unsigned
// weights never exceed 63, so they are signed ones too.

// Each lane of `pairs` holds two int16 (low, high): low * two[0] + high * two[1].
TIDEMILL_INLINE i32x16 pair_dot(i32x16 pairs, const std::int16_t* two) {
  const int32x4_t low_factor = vdupq_n_s32(two[0]);
  const int32x4_t high_factor = vdupq_n_s32(two[1]);
  return TIDEMILL_QUARTERS(
      i32x16, vmlaq_s32(vmulq_s32(vshrq_n_s32(vshlq_n_s32(pairs.v[q], 16), 16), low_factor),
                        vshrq_n_s32(pairs.v[q], 16), high_factor));
}

// An int16 factor, as DotSub wants it.
TIDEMILL_INLINE i32x16 sub_factor(i32x16 factor) { return factor; }

TIDEMILL_INLINE i32x16 add_products(i32x16 total, b64 w, b64 a) {
  return TIDEMILL_QUARTERS(i32x16, vdotq_s32(total.v[q], vreinterpretq_s8_u8(w.v[q]),
                                             vreinterpretq_s8_u8(a.v[q])));
}

template <int kMax>
struct DotU {
  static_assert(kMax <= 127);
  i32x16 total = i32_splat(0);

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a) {
    total = add_products(total, w, a);
  }
  TIDEMILL_INLINE i32x16 sum() const { return total; }
};

struct DotS {
  i32x16 total = i32_splat(0);

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a) {
    total = add_products(total, w, a);
  }
  // `sums` are the block's sum_lo and sum_hi (not needed here).
  TIDEMILL_INLINE i32x16 sum(const std::int16_t*) const { return total; }
};

template <int kMax>
struct DotSub {
  static_assert(kMax <= 127);
  i32x16 half = i32_splat(0);
  i32x16 total = i32_splat(0);

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a, i32x16 factor_lo, i32x16 factor_hi) {
    half = add_products(half, w, a);
    if constexpr (kQuad % 4 == 3) {
      const i32x16 factor = kQuad == 3 ? factor_lo : factor_hi;
      total = TIDEMILL_QUARTERS(i32x16, vmlaq_s32(total.v[q], half.v[q], factor.v[q]));
      half = i32_splat(0);
    }
  }
  TIDEMILL_INLINE i32x16 sum() const { return total; }
};

#undef TIDEMILL_QUARTERS

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
