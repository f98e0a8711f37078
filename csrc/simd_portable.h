// Vector operations in plain C++, over the compiler's generic vectors (GCC and Clang lower them to
// whatever the baseline CPU has). See simd.h.
#pragma once

#include "half.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

// There are few registers to fill, and compile time to save.
inline constexpr int kDirectTokens = 2;
inline constexpr int kCheapPasses = 4;
inline constexpr int kStagedTokens = 2;
inline constexpr int kFloatTokens = 2;
inline constexpr int kAttendSums = 4;
inline constexpr int kKeptFactors = 6;

using RawF32 = float __attribute__((vector_size(64)));
using RawI32 = std::int32_t __attribute__((vector_size(64)));
using RawU32 = std::uint32_t __attribute__((vector_size(64)));
using RawI16 = std::int16_t __attribute__((vector_size(64)));
using RawU16 = std::uint16_t __attribute__((vector_size(64)));
using RawU8 = std::uint8_t __attribute__((vector_size(64)));

struct f32x16 {
  RawF32 v;
};
struct i32x16 {
  RawI32 v;
};
struct b64 {
  RawU8 v;
};
struct mask16 {
  RawI32 v;
};

// The same bits as another type of vector.
template <class To, class From>
TIDEMILL_INLINE To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return (To)from;
}

// ---- float32

TIDEMILL_INLINE f32x16 f32_splat(float x) { return {x - RawF32{}}; }
TIDEMILL_INLINE f32x16 f32_zero() { return {RawF32{}}; }
TIDEMILL_INLINE f32x16 f32_load(const float* p) {
  f32x16 r;
  std::memcpy(&r.v, p, sizeof r.v);
  return r;
}
TIDEMILL_INLINE void f32_store(float* p, f32x16 a) { std::memcpy(p, &a.v, sizeof a.v); }
TIDEMILL_INLINE f32x16 f32_load_n(const float* p, int n) {
  f32x16 r = f32_zero();
  for (int i = 0; i < n; ++i) r.v[i] = p[i];
  return r;
}
TIDEMILL_INLINE void f32_store_n(float* p, f32x16 a, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
// Sixteen scalar conversions: kept out of line, for they are used in many places.
[[gnu::noinline]] void halves_to_floats(const std::uint16_t* p, float* out) {
  for (int i = 0; i < 16; ++i) out[i] = f16_to_float(p[i]);
}
TIDEMILL_INLINE f32x16 f32_load_f16(const std::uint16_t* p) {
  float values[16];
  halves_to_floats(p, values);
  return f32_load(values);
}
TIDEMILL_INLINE void f32_store_f16(std::uint16_t* p, f32x16 a) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_f16(a.v[i]);
}
TIDEMILL_INLINE f32x16 f32_load_bf16(const std::uint16_t* p) {
  f32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = bf16_to_float(p[i]);
  return r;
}
TIDEMILL_INLINE f32x16 f32_load_bf16_split(const std::uint16_t* p) { return f32_load_bf16(p); }
TIDEMILL_INLINE f32x16 f32_unsplit(f32x16 v) { return v; }
TIDEMILL_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {a.v + b.v}; }
TIDEMILL_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {a.v - b.v}; }
TIDEMILL_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {a.v * b.v}; }
TIDEMILL_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {a.v / b.v}; }
// Two roundings: std::fma is a library call where the baseline CPU has no such instruction.
TIDEMILL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {a.v * b.v + c.v}; }
TIDEMILL_INLINE f32x16 min(f32x16 a, f32x16 b) { return {a.v < b.v ? a.v : b.v}; }
TIDEMILL_INLINE f32x16 max(f32x16 a, f32x16 b) { return {a.v > b.v ? a.v : b.v}; }
TIDEMILL_INLINE f32x16 abs(f32x16 a) {
  return {bits_as<RawF32>(bits_as<RawU32>(a.v) & 0x7FFFFFFFu)};
}
TIDEMILL_INLINE f32x16 sqrt(f32x16 a) {
  f32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = ::sqrtf(a.v[i]);
  return r;
}
TIDEMILL_INLINE float reduce_add(f32x16 a) {
  float v[16];
  f32_store(v, a);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v[i] = v[i] + v[i + width];
  }
  return v[0];
}
TIDEMILL_INLINE float reduce_max(f32x16 a) {
  float v[16];
  f32_store(v, a);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v[i] = v[i] > v[i + width] ? v[i] : v[i + width];
  }
  return v[0];
}
TIDEMILL_INLINE mask16 less(f32x16 a, f32x16 b) { return {a.v < b.v}; }
TIDEMILL_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) { return {m.v ? a.v : b.v}; }

// ---- int32, wrapping (signed overflow would be undefined)

TIDEMILL_INLINE RawU32 raw(i32x16 a) { return bits_as<RawU32>(a.v); }
TIDEMILL_INLINE i32x16 wrap(RawU32 v) { return {bits_as<RawI32>(v)}; }

TIDEMILL_INLINE i32x16 i32_splat(std::int32_t x) { return {x - RawI32{}}; }
TIDEMILL_INLINE i32x16 i32_load(const void* p) {
  i32x16 r;
  std::memcpy(&r.v, p, sizeof r.v);
  return r;
}
TIDEMILL_INLINE void i32_store(void* p, i32x16 a) { std::memcpy(p, &a.v, sizeof a.v); }
TIDEMILL_INLINE i32x16 i32_load_u8(const std::uint8_t* p) {
  i32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = p[i];
  return r;
}
TIDEMILL_INLINE i32x16 i32_load_i8(const std::uint8_t* p) {
  i32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<std::int8_t>(p[i]);
  return r;
}
TIDEMILL_INLINE i32x16 operator+(i32x16 a, i32x16 b) { return wrap(raw(a) + raw(b)); }
TIDEMILL_INLINE i32x16 operator-(i32x16 a, i32x16 b) { return wrap(raw(a) - raw(b)); }
TIDEMILL_INLINE i32x16 operator&(i32x16 a, i32x16 b) { return {a.v & b.v}; }
TIDEMILL_INLINE i32x16 operator|(i32x16 a, i32x16 b) { return {a.v | b.v}; }
TIDEMILL_INLINE i32x16 i32_max(i32x16 a, i32x16 b) { return {a.v > b.v ? a.v : b.v}; }
TIDEMILL_INLINE std::int32_t reduce_add(i32x16 a) {
  std::uint32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += static_cast<std::uint32_t>(a.v[i]);
  return static_cast<std::int32_t>(sum);
}
TIDEMILL_INLINE std::int32_t reduce_max(i32x16 a) {
  std::int32_t most = a.v[0];
  for (int i = 1; i < 16; ++i) most = a.v[i] > most ? a.v[i] : most;
  return most;
}
template <int n>
TIDEMILL_INLINE i32x16 shift_left(i32x16 a) {
  return wrap(raw(a) << n);
}
template <int n>
TIDEMILL_INLINE i32x16 shift_right(i32x16 a) {
  return wrap(raw(a) >> n);
}
TIDEMILL_INLINE f32x16 to_f32(i32x16 a) { return {__builtin_convertvector(a.v, RawF32)}; }
TIDEMILL_INLINE i32x16 round_to_i32(f32x16 a) {
  i32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<std::int32_t>(::lrintf(a.v[i]));
  return r;
}
TIDEMILL_INLINE f32x16 as_f32(i32x16 a) { return {bits_as<RawF32>(a.v)}; }
TIDEMILL_INLINE i32x16 as_i32(f32x16 a) { return {bits_as<RawI32>(a.v)}; }
TIDEMILL_INLINE void store_i8(std::int8_t* p, i32x16 a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int8_t>(a.v[i]);
}

// ---- 16 rows of 4 bytes

TIDEMILL_INLINE b64 b64_load(const void* p) {
  b64 r;
  std::memcpy(&r.v, p, sizeof r.v);
  return r;
}
TIDEMILL_INLINE void b64_store(void* p, b64 a) { std::memcpy(p, &a.v, sizeof a.v); }
TIDEMILL_INLINE b64 b64_splat(int x) { return {static_cast<std::uint8_t>(x) - RawU8{}}; }
TIDEMILL_INLINE b64 b64_quad(const void* p) {
  std::uint32_t quad;
  std::memcpy(&quad, p, 4);
  return {bits_as<RawU8>(quad - RawU32{})};
}
TIDEMILL_INLINE b64 b64_table(const void* p) {
  b64 r;
  for (int i = 0; i < 4; ++i) std::memcpy(reinterpret_cast<char*>(&r.v) + 16 * i, p, 16);
  return r;
}
TIDEMILL_INLINE b64 operator&(b64 a, b64 b) { return {a.v & b.v}; }
TIDEMILL_INLINE b64 operator|(b64 a, b64 b) { return {a.v | b.v}; }
TIDEMILL_INLINE b64 operator^(b64 a, b64 b) { return {a.v ^ b.v}; }
template <int n>
TIDEMILL_INLINE b64 shift_left16(b64 a) {
  return {bits_as<RawU8>(bits_as<RawU16>(a.v) << n)};
}
template <int n>
TIDEMILL_INLINE b64 shift_right16(b64 a) {
  return {bits_as<RawU8>(bits_as<RawU16>(a.v) >> n)};
}
[[gnu::noinline]] void lookup_bytes(const std::uint8_t* table, std::uint8_t* bytes) {
  for (int i = 0; i < 64; ++i) bytes[i] = table[bytes[i] & 15];
}
TIDEMILL_INLINE b64 lookup16(b64 table, b64 index) {
  std::uint8_t values[64];
  std::uint8_t bytes[64];
  b64_store(values, table);
  b64_store(bytes, index);
  lookup_bytes(values, bytes);
  return b64_load(bytes);
}
TIDEMILL_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

// ---- integer dot products over one group
//
// Bytes are taken apart within 16-bit lanes. A product is at most 128 * 127 in magnitude and the sum
// of the two of a lane at most 32512, for signed weights and for unsigned ones up to 63: int16 holds
// it. Lanes are then widened to int32 in pairs.

// Low or high int16 of each int32 lane, sign-extended.
TIDEMILL_INLINE RawI32 low_half(RawI32 v) {
  return bits_as<RawI32>(bits_as<RawU32>(v) << 16) >> 16;
}
TIDEMILL_INLINE RawI32 high_half(RawI32 v) { return v >> 16; }

// Low or high byte of each int16 lane, sign-extended.
TIDEMILL_INLINE RawI16 low_byte(RawU8 v) { return bits_as<RawI16>(bits_as<RawU16>(v) << 8) >> 8; }
TIDEMILL_INLINE RawI16 high_byte(RawU8 v) { return bits_as<RawI16>(v) >> 8; }

// For each row the sum of its four products. Weights above 127 do not occur as unsigned ones, so one
// function does for both kinds.
TIDEMILL_INLINE i32x16 quad_products(b64 w, b64 a) {
  const RawI16 pairs = low_byte(w.v) * low_byte(a.v) + high_byte(w.v) * high_byte(a.v);
  const RawI32 lanes = bits_as<RawI32>(pairs);
  return {low_half(lanes) + high_half(lanes)};
}

// Each lane of `pairs` holds two int16 (low, high): low * two[0] + high * two[1].
TIDEMILL_INLINE i32x16 pair_dot(i32x16 pairs, const std::int16_t* two) {
  return {low_half(pairs.v) * static_cast<std::int32_t>(two[0]) +
          high_half(pairs.v) * static_cast<std::int32_t>(two[1])};
}

// An int16 factor, as DotSub wants it.
TIDEMILL_INLINE i32x16 sub_factor(i32x16 factor) { return factor; }

template <int kMax>
struct DotU {
  static_assert(kMax <= 63);
  i32x16 total = i32_splat(0);

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a) {
    total = total + quad_products(w, a);
  }
  TIDEMILL_INLINE i32x16 sum() const { return total; }
};

struct DotS {
  i32x16 total = i32_splat(0);

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a) {
    total = total + quad_products(w, a);
  }
  // `sums` are the block's sum_lo and sum_hi (not needed here).
  TIDEMILL_INLINE i32x16 sum(const std::int16_t*) const { return total; }
};

template <int kMax>
struct DotSub {
  static_assert(kMax <= 63);
  i32x16 half = i32_splat(0);
  i32x16 total = i32_splat(0);

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a, i32x16 factor_lo, i32x16 factor_hi) {
    half = half + quad_products(w, a);
    if constexpr (kQuad % 4 == 3) {
      const i32x16 factor = kQuad == 3 ? factor_lo : factor_hi;
      total = total + i32x16{half.v * factor.v};
      half = i32_splat(0);
    }
  }
  TIDEMILL_INLINE i32x16 sum() const { return total; }
};

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
