// How the kernels read one group (16 rows x 32 columns) of each packed type: tile_layout.h gives
// the bytes. A format has
//   kPacked         whether this is the layout in memory, not the unpacked form of matmul.inl.h
//   kKind           how its products are scaled (below)
//   DotType         the integer dot product of simd.h that its weights' range allows
//   kQuantBytes     from one group's quants to the next one's
//   kGroupBytes     bytes of a group all in all, on average (packed formats)
//   kDirectPasses   up to how many passes over the packed tile cost less than unpacking it once
//   quad<j>(q)      the weights of quad j as bytes, from the group's quants
//   scales(s, g)    the group's factors, from the tile's scale part
#pragma once

#include "simd.h"
#include "tile_layout.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

enum class Kind {
  // Sum over columns of (scale * u + min) * x, u in [0, max]: with the integer sum I of u * q
  //   scale * block.scale * I + min * block.sum
  kAffine,
  // Sum over columns of scale * (u - kOffset) * x: scale * block.scale * (I - kOffset * sum of q)
  kOffset,
  // Signed bytes: scale * block.scale * I
  kSigned,
  // Unsigned with integer factors f, c for each half: I = sum f * u * q, C = sum c * q
  //   scale * block.scale * (I + C), or with a scale of its own for C
  kSub,
};

struct AffineScales {
  f32x16 scale, min;
};
struct OneScale {
  f32x16 scale;
};
struct SubScales {
  f32x16 scale;
  f32x16 offset_scale;          // of C; the same as `scale` where kOneScale
  i32x16 factor_lo, factor_hi;  // as sub_factor() makes them
  i32x16 offset_pairs;          // int16 c of columns 0-15 in the low half, of 16-31 in the high
};

// ---- quants

struct NibbleQuants {
  template <int kQuad>
  static TIDEMILL_INLINE b64 quad(const std::uint8_t* q) {
    const b64 plane = b64_load(q + 64 * (kQuad % 4));
    const b64 mask = b64_splat(0x0F);
    if constexpr (kQuad < 4) {
      return plane & mask;
    } else {
      return shift_right16<4>(plane) & mask;
    }
  }
};

struct FiveBitQuants {
  template <int kQuad>
  static TIDEMILL_INLINE b64 quad(const std::uint8_t* q) {
    const b64 plane = b64_load(q + 256);
    const b64 mask = b64_splat(0x10);
    const b64 low = NibbleQuants::quad<kQuad>(q);
    if constexpr (kQuad < 4) {
      return low | (shift_left16<4 - kQuad>(plane) & mask);
    } else {
      return low | (shift_right16<kQuad - 4>(plane) & mask);
    }
  }
};

struct SixBitQuants {
  template <int kQuad>
  static TIDEMILL_INLINE b64 quad(const std::uint8_t* q) {
    constexpr int bit = 2 * (kQuad % 4);
    const b64 plane = b64_load(q + 256 + 64 * (kQuad / 4));
    const b64 mask = b64_splat(0x30);
    const b64 low = NibbleQuants::quad<kQuad>(q);
    if constexpr (bit <= 4) {
      return low | (shift_left16<4 - bit>(plane) & mask);
    } else {
      return low | (shift_right16<bit - 4>(plane) & mask);
    }
  }
};

struct ByteQuants {
  template <int kQuad>
  static TIDEMILL_INLINE b64 quad(const std::uint8_t* q) {
    return b64_load(q + 64 * kQuad);
  }
};

struct Iq4Quants {
  template <int kQuad>
  static TIDEMILL_INLINE b64 quad(const std::uint8_t* q) {
    return lookup16(b64_table(kIq4Values), NibbleQuants::quad<kQuad>(q));
  }
};

// MXFP4 values are in [-12, 12]: moved by 16 they are unsigned and below 32.
alignas(16) constexpr std::uint8_t kMxfp4Moved[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                                      16, 15, 14, 13, 12, 10, 8,  4};
struct Mxfp4Quants {
  template <int kQuad>
  static TIDEMILL_INLINE b64 quad(const std::uint8_t* q) {
    return lookup16(b64_table(kMxfp4Moved), NibbleQuants::quad<kQuad>(q));
  }
};

// ---- scales

TIDEMILL_INLINE f32x16 load_halves(const std::uint8_t* p) {
  return f32_load_f16(reinterpret_cast<const std::uint16_t*>(p));
}

// d alone: d * q, or d * (q - offset).
template <TensorType kType>
struct PlainScales {
  static TIDEMILL_INLINE OneScale scales(const std::uint8_t* s, int group) {
    return {load_halves(s + scale_offset(tile_layout(kType), group))};
  }
};

// d and m: d * q + m.
template <TensorType kType>
struct MinScales {
  static TIDEMILL_INLINE AffineScales scales(const std::uint8_t* s, int group) {
    const std::uint8_t* p = s + scale_offset(tile_layout(kType), group);
    return {load_halves(p), load_halves(p + 32)};
  }
};

// Super-block d, dmin with bytes s, m per group: d * s * q - dmin * m. Both products are exact in
// float32 (11 and 8 significant bits).
template <TensorType kType>
struct SuperMinScales {
  static TIDEMILL_INLINE AffineScales scales(const std::uint8_t* s, int group) {
    const std::uint8_t* super = s + super_offset(tile_layout(kType), group);
    const std::uint8_t* p = s + scale_offset(tile_layout(kType), group);
    const f32x16 scale = load_halves(super) * to_f32(i32_load_u8(p));
    const f32x16 min = load_halves(super + 32) * to_f32(i32_load_u8(p + 16));
    return {scale, f32_zero() - min};
  }
};

TIDEMILL_INLINE i32x16 pack_pairs(i32x16 lo, i32x16 hi) {
  return (lo & i32_splat(0xFFFF)) | shift_left<16>(hi);
}

// Super-block d with signed bytes per half group: d * s * (q - 2^kOffsetBits).
template <TensorType kType, int kOffsetBits>
struct HalfScales {
  static constexpr bool kOneScale = true;
  static TIDEMILL_INLINE SubScales scales(const std::uint8_t* s, int group) {
    const f32x16 d = load_halves(s + super_offset(tile_layout(kType), group));
    const std::uint8_t* p = s + scale_offset(tile_layout(kType), group);
    const i32x16 lo = i32_load_i8(p);
    const i32x16 hi = i32_load_i8(p + 16);
    const i32x16 zero = i32_splat(0);
    return {d, d, sub_factor(lo), sub_factor(hi),
            pack_pairs(zero - shift_left<kOffsetBits>(lo), zero - shift_left<kOffsetBits>(hi))};
  }
};

// ---- formats

// One or two operations a quad, or none.
template <class Quants>
inline constexpr bool kUnpacksCheaply = false;
template <>
inline constexpr bool kUnpacksCheaply<NibbleQuants> = true;
template <>
inline constexpr bool kUnpacksCheaply<ByteQuants> = true;

template <Kind kind, class Dot, class Quants, class Scales, TensorType type>
struct Format : Quants, Scales {
  static constexpr bool kPacked = true;
  static constexpr Kind kKind = kind;
  static constexpr int kQuantBytes = tile_layout(type).quant_bytes;
  static constexpr int kSuperBytes = tile_layout(type).super_bytes;
  static constexpr int kGroupBytes =
      kQuantBytes + tile_layout(type).scale_bytes + kSuperBytes / 8;
  static constexpr int kDirectPasses =
      kUnpacksCheaply<Quants> && kSuperBytes == 0 ? kCheapPasses : 2;
  using DotType = Dot;
};

template <TensorType type>
struct FormatOf;

template <>
struct FormatOf<TensorType::Q4_0> : Format<Kind::kOffset, DotU<15>, NibbleQuants,
                                           PlainScales<TensorType::Q4_0>, TensorType::Q4_0> {
  static constexpr int kOffset = 8;
};
template <>
struct FormatOf<TensorType::Q4_1> : Format<Kind::kAffine, DotU<15>, NibbleQuants,
                                           MinScales<TensorType::Q4_1>, TensorType::Q4_1> {};
template <>
struct FormatOf<TensorType::Q5_0> : Format<Kind::kOffset, DotU<31>, FiveBitQuants,
                                           PlainScales<TensorType::Q5_0>, TensorType::Q5_0> {
  static constexpr int kOffset = 16;
};
template <>
struct FormatOf<TensorType::Q5_1> : Format<Kind::kAffine, DotU<31>, FiveBitQuants,
                                           MinScales<TensorType::Q5_1>, TensorType::Q5_1> {};
template <>
struct FormatOf<TensorType::Q4_K> : Format<Kind::kAffine, DotU<15>, NibbleQuants,
                                           SuperMinScales<TensorType::Q4_K>, TensorType::Q4_K> {};
template <>
struct FormatOf<TensorType::Q5_K> : Format<Kind::kAffine, DotU<31>, FiveBitQuants,
                                           SuperMinScales<TensorType::Q5_K>, TensorType::Q5_K> {};
template <>
struct FormatOf<TensorType::Q3_K> : Format<Kind::kSub, DotSub<15>, NibbleQuants,
                                           HalfScales<TensorType::Q3_K, 2>, TensorType::Q3_K> {};
template <>
struct FormatOf<TensorType::Q6_K> : Format<Kind::kSub, DotSub<63>, SixBitQuants,
                                           HalfScales<TensorType::Q6_K, 5>, TensorType::Q6_K> {};

template <>
struct FormatOf<TensorType::Q8_0>
    : Format<Kind::kSigned, DotS, ByteQuants, PlainScales<TensorType::Q8_0>, TensorType::Q8_0> {};
template <>
struct FormatOf<TensorType::IQ4_NL> : Format<Kind::kSigned, DotS, Iq4Quants,
                                             PlainScales<TensorType::IQ4_NL>, TensorType::IQ4_NL> {
};

struct Iq4XsScales {
  static TIDEMILL_INLINE OneScale scales(const std::uint8_t* s, int group) {
    constexpr TileLayout layout = tile_layout(TensorType::IQ4_XS);
    const f32x16 d = load_halves(s + super_offset(layout, group));
    return {d * to_f32(i32_load_i8(s + scale_offset(layout, group)))};
  }
};
template <>
struct FormatOf<TensorType::IQ4_XS>
    : Format<Kind::kSigned, DotS, Iq4Quants, Iq4XsScales, TensorType::IQ4_XS> {};

struct Mxfp4Scales {
  static TIDEMILL_INLINE OneScale scales(const std::uint8_t* s, int group) {
    // 2^(e - 128) has the bits (e - 1) << 23, or as a subnormal, for e < 2, (e + 1) << 21; the
    // right one is the larger of the two.
    const i32x16 e = i32_load_u8(s + scale_offset(tile_layout(TensorType::MXFP4), group));
    const i32x16 one = i32_splat(1);
    return {as_f32(i32_max(shift_left<23>(e - one), shift_left<21>(e + one)))};
  }
};
template <>
struct FormatOf<TensorType::MXFP4>
    : Format<Kind::kOffset, DotU<31>, Mxfp4Quants, Mxfp4Scales, TensorType::MXFP4> {
  static constexpr int kOffset = 16;
};

// Q2_K: unsigned factor and unsigned minimum per half group, each with a super-block scale.
struct Q2Scales {
  static constexpr bool kOneScale = false;
  static TIDEMILL_INLINE SubScales scales(const std::uint8_t* s, int group) {
    constexpr TileLayout layout = tile_layout(TensorType::Q2_K);
    const std::uint8_t* super = s + super_offset(layout, group);
    const std::uint8_t* p = s + scale_offset(layout, group);
    const i32x16 lo = i32_load_u8(p);
    const i32x16 hi = i32_load_u8(p + 16);
    const i32x16 nibble = i32_splat(15);
    return {load_halves(super), f32_zero() - load_halves(super + 32), sub_factor(lo & nibble),
            sub_factor(hi & nibble), pack_pairs(shift_right<4>(lo), shift_right<4>(hi))};
  }
};
template <>
struct FormatOf<TensorType::Q2_K>
    : Format<Kind::kSub, DotSub<15>, NibbleQuants, Q2Scales, TensorType::Q2_K> {};

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
