// Vector operations in plain C++: 16 lanes are an array. See simd.h.
#pragma once

#include "half.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

struct f32x16 {
  float v[16];
};
struct i32x16 {
  std::int32_t v[16];
};
struct b64 {
  std::uint8_t v[64];
};
struct mask16 {
  bool v[16];
};

// ---- float32

TIDEMILL_INLINE f32x16 f32_splat(float x) {
  f32x16 r;
  for (float& e : r.v) e = x;
  return r;
}
TIDEMILL_INLINE f32x16 f32_zero() { return f32_splat(0.0f); }
TIDEMILL_INLINE f32x16 f32_load(const float* p) {
  f32x16 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
TIDEMILL_INLINE void f32_store(float* p, f32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
TIDEMILL_INLINE f32x16 f32_load_n(const float* p, int n) {
  f32x16 r = f32_zero();
  for (int i = 0; i < n; ++i) r.v[i] = p[i];
  return r;
}
TIDEMILL_INLINE void f32_store_n(float* p, f32x16 a, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
TIDEMILL_INLINE f32x16 f32_load_f16(const std::uint16_t* p) {
  f32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = f16_to_float(p[i]);
  return r;
}
TIDEMILL_INLINE void f32_store_f16(std::uint16_t* p, f32x16 a) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_f16(a.v[i]);
}
TIDEMILL_INLINE f32x16 f32_load_bf16(const std::uint16_t* p) {
  f32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = bf16_to_float(p[i]);
  return r;
}

#define TIDEMILL_LANES(Result, expression)     \
  {                                            \
    Result r;                                  \
    for (int i = 0; i < 16; ++i) {             \
      r.v[i] = (expression);                   \
    }                                          \
    return r;                                  \
  }

TIDEMILL_INLINE f32x16 operator+(f32x16 a, f32x16 b) TIDEMILL_LANES(f32x16, a.v[i] + b.v[i])
TIDEMILL_INLINE f32x16 operator-(f32x16 a, f32x16 b) TIDEMILL_LANES(f32x16, a.v[i] - b.v[i])
TIDEMILL_INLINE f32x16 operator*(f32x16 a, f32x16 b) TIDEMILL_LANES(f32x16, a.v[i] * b.v[i])
TIDEMILL_INLINE f32x16 operator/(f32x16 a, f32x16 b) TIDEMILL_LANES(f32x16, a.v[i] / b.v[i])
// Two roundings: std::fma is a library call where the baseline CPU has no such instruction.
TIDEMILL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c)
    TIDEMILL_LANES(f32x16, a.v[i] * b.v[i] + c.v[i])
TIDEMILL_INLINE f32x16 min(f32x16 a, f32x16 b)
    TIDEMILL_LANES(f32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
TIDEMILL_INLINE f32x16 max(f32x16 a, f32x16 b)
    TIDEMILL_LANES(f32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
TIDEMILL_INLINE f32x16 abs(f32x16 a) TIDEMILL_LANES(f32x16, ::fabsf(a.v[i]))
TIDEMILL_INLINE f32x16 sqrt(f32x16 a) TIDEMILL_LANES(f32x16, ::sqrtf(a.v[i]))
TIDEMILL_INLINE float reduce_add(f32x16 a) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.v[i] = a.v[i] + a.v[i + width];
  }
  return a.v[0];
}
TIDEMILL_INLINE float reduce_max(f32x16 a) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
  }
  return a.v[0];
}
TIDEMILL_INLINE mask16 less(f32x16 a, f32x16 b) TIDEMILL_LANES(mask16, a.v[i] < b.v[i])
TIDEMILL_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b)
    TIDEMILL_LANES(f32x16, m.v[i] ? a.v[i] : b.v[i])

// ---- int32, wrapping

TIDEMILL_INLINE std::int32_t wrap(std::uint32_t x) { return static_cast<std::int32_t>(x); }
TIDEMILL_INLINE std::uint32_t raw(std::int32_t x) { return static_cast<std::uint32_t>(x); }

TIDEMILL_INLINE i32x16 i32_splat(std::int32_t x) {
  i32x16 r;
  for (std::int32_t& e : r.v) e = x;
  return r;
}
TIDEMILL_INLINE i32x16 i32_load(const void* p) {
  i32x16 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
TIDEMILL_INLINE void i32_store(void* p, i32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
TIDEMILL_INLINE i32x16 i32_load_u8(const std::uint8_t* p) TIDEMILL_LANES(i32x16, p[i])
TIDEMILL_INLINE i32x16 i32_load_i8(const std::uint8_t* p)
    TIDEMILL_LANES(i32x16, static_cast<std::int8_t>(p[i]))
TIDEMILL_INLINE i32x16 operator+(i32x16 a, i32x16 b)
    TIDEMILL_LANES(i32x16, wrap(raw(a.v[i]) + raw(b.v[i])))
TIDEMILL_INLINE i32x16 operator-(i32x16 a, i32x16 b)
    TIDEMILL_LANES(i32x16, wrap(raw(a.v[i]) - raw(b.v[i])))
TIDEMILL_INLINE i32x16 operator&(i32x16 a, i32x16 b) TIDEMILL_LANES(i32x16, a.v[i] & b.v[i])
TIDEMILL_INLINE i32x16 operator|(i32x16 a, i32x16 b) TIDEMILL_LANES(i32x16, a.v[i] | b.v[i])
TIDEMILL_INLINE i32x16 i32_max(i32x16 a, i32x16 b)
    TIDEMILL_LANES(i32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
template <int n>
TIDEMILL_INLINE i32x16 shift_left(i32x16 a) TIDEMILL_LANES(i32x16, wrap(raw(a.v[i]) << n))
template <int n>
TIDEMILL_INLINE i32x16 shift_right(i32x16 a) TIDEMILL_LANES(i32x16, wrap(raw(a.v[i]) >> n))
TIDEMILL_INLINE f32x16 to_f32(i32x16 a) TIDEMILL_LANES(f32x16, static_cast<float>(a.v[i]))
TIDEMILL_INLINE i32x16 round_to_i32(f32x16 a)
    TIDEMILL_LANES(i32x16, static_cast<std::int32_t>(::lrintf(a.v[i])))
TIDEMILL_INLINE f32x16 as_f32(i32x16 a) {
  f32x16 r;
  std::memcpy(r.v, a.v, sizeof r.v);
  return r;
}
TIDEMILL_INLINE i32x16 as_i32(f32x16 a) {
  i32x16 r;
  std::memcpy(r.v, a.v, sizeof r.v);
  return r;
}
TIDEMILL_INLINE void store_i8(std::int8_t* p, i32x16 a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int8_t>(a.v[i]);
}

#undef TIDEMILL_LANES

// ---- 16 rows of 4 bytes

#define TIDEMILL_BYTES(expression)             \
  {                                            \
    b64 r;                                     \
    for (int i = 0; i < 64; ++i) {             \
      r.v[i] = static_cast<std::uint8_t>(expression); \
    }                                          \
    return r;                                  \
  }

TIDEMILL_INLINE b64 b64_load(const void* p) {
  b64 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
TIDEMILL_INLINE void b64_store(void* p, b64 a) { std::memcpy(p, a.v, sizeof a.v); }
TIDEMILL_INLINE b64 b64_splat(int x) TIDEMILL_BYTES(x)
TIDEMILL_INLINE b64 b64_quad(const void* p)
    TIDEMILL_BYTES(static_cast<const std::uint8_t*>(p)[i % 4])
TIDEMILL_INLINE b64 b64_table(const void* p)
    TIDEMILL_BYTES(static_cast<const std::uint8_t*>(p)[i % 16])
TIDEMILL_INLINE b64 operator&(b64 a, b64 b) TIDEMILL_BYTES(a.v[i] & b.v[i])
TIDEMILL_INLINE b64 operator|(b64 a, b64 b) TIDEMILL_BYTES(a.v[i] | b.v[i])
TIDEMILL_INLINE b64 operator^(b64 a, b64 b) TIDEMILL_BYTES(a.v[i] ^ b.v[i])
template <int n>
TIDEMILL_INLINE b64 shift_left16(b64 a) {
  std::uint16_t lanes[32];
  std::memcpy(lanes, a.v, sizeof lanes);
  for (std::uint16_t& lane : lanes) lane = static_cast<std::uint16_t>(lane << n);
  return b64_load(lanes);
}
template <int n>
TIDEMILL_INLINE b64 shift_right16(b64 a) {
  std::uint16_t lanes[32];
  std::memcpy(lanes, a.v, sizeof lanes);
  for (std::uint16_t& lane : lanes) lane = static_cast<std::uint16_t>(lane >> n);
  return b64_load(lanes);
}
TIDEMILL_INLINE b64 lookup16(b64 table, b64 index) TIDEMILL_BYTES(table.v[index.v[i] & 15])
TIDEMILL_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

#undef TIDEMILL_BYTES

// ---- integer dot products over one group: plain int32 sums

TIDEMILL_INLINE i32x16 pair_dot(i32x16 pairs, const std::int16_t* two) {
  i32x16 r;
  for (int i = 0; i < 16; ++i) {
    const auto lo = static_cast<std::int16_t>(raw(pairs.v[i]) & 0xFFFFu);
    const auto hi = static_cast<std::int16_t>(raw(pairs.v[i]) >> 16);
    r.v[i] = lo * two[0] + hi * two[1];
  }
  return r;
}

TIDEMILL_INLINE i32x16 sub_factor(i32x16 factor) { return factor; }

template <typename Weight>
TIDEMILL_INLINE void add_products(i32x16& total, const b64& w, const b64& a) {
  for (int i = 0; i < 16; ++i) {
    std::int32_t sum = 0;
    for (int c = 0; c < 4; ++c) {
      sum += static_cast<Weight>(w.v[4 * i + c]) * static_cast<std::int8_t>(a.v[4 * i + c]);
    }
    total.v[i] += sum;
  }
}

template <int kMax>
struct DotU {
  i32x16 total = i32_splat(0);

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a) {
    add_products<std::uint8_t>(total, w, a);
  }
  TIDEMILL_INLINE i32x16 sum() const { return total; }
};

struct DotS {
  i32x16 total = i32_splat(0);

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a) {
    add_products<std::int8_t>(total, w, a);
  }
  TIDEMILL_INLINE i32x16 sum(const std::int16_t*) const { return total; }
};

template <int kMax>
struct DotSub {
  i32x16 half = i32_splat(0);
  i32x16 total = i32_splat(0);

  template <int kQuad>
  TIDEMILL_INLINE void add(b64 w, b64 a, i32x16 factor_lo, i32x16 factor_hi) {
    add_products<std::uint8_t>(half, w, a);
    if constexpr (kQuad % 4 == 3) {
      const i32x16& factor = kQuad == 3 ? factor_lo : factor_hi;
      for (int i = 0; i < 16; ++i) total.v[i] += half.v[i] * factor.v[i];
      half = i32_splat(0);
    }
  }
  TIDEMILL_INLINE i32x16 sum() const { return total; }
};

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
