// The matmul kernels: 16 rows of weights against a few tokens at a time.
//
// One micro-kernel, `accumulate`, does all the arithmetic, for any format and one or a few
// tokens. Group after group it forms the integer sums of 16 rows x T tokens and adds them, scaled,
// to T float accumulators. Two drivers feed it:
//   few tokens    straight from the packed tile, unpacking as it goes (decode: memory-bound);
//   many tokens   a stretch of the tile is first unpacked to bytes and float scales in the L1 cache
//                 ("staged": just another format) and reused by all tokens of a block that
//                 fits in the L2 cache.
// Integer sums are exact and the float operations of one output are the same in every case, so an
// output's bits do not depend on the driver, on T, or on where stretches end.
#pragma once

#include <utility>

#include "formats.inl.h"
#include "matmul.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

// kStagedTokens and kDirectTokens of simd_<isa>.h: tokens per micro-kernel in the staged and in the
// direct driver. More would not fit the registers; measured, not guessed
// (benchmarks/kernel_matmul.py).

// Groups per staged stretch: 24 x 640 bytes leave half of a 32 KiB L1 cache to the activations.
inline constexpr int kStageGroups = 24;

// Tokens per block of the staged driver, by size (about half of a 512 KiB L2 cache) and by count.
inline constexpr std::size_t kBlockBytes = 256 * 1024;
inline constexpr int kMostBlockTokens = 256;

// The parts of a tile that the micro-kernel reads, and the tile that follows.
struct Tile {
  const std::uint8_t* quants;
  const std::uint8_t* scales;
  const std::uint8_t* next;
};

template <int... kQuad, class Body>
TIDEMILL_INLINE void unroll(std::integer_sequence<int, kQuad...>, const Body& body) {
  (body(std::integral_constant<int, kQuad>{}), ...);
}

// ---- the micro-kernel

// Whether a dot product has a faster way to take two tokens at once (simd_avx2.h).
template <class Dot>
concept TakesTwo = requires(Dot dot, f32x16 acc, f32x16 scale) { dot.add_scaled(acc, scale); };

// acc += (sum of the dot product + offset) * scale. kTwo: the products came in by add_two().
template <bool kTwo, class Dot, class... Offset>
TIDEMILL_INLINE void add_scaled(f32x16& acc, const Dot& dot, f32x16 scale, Offset... offset) {
  if constexpr (kTwo) {
    dot.add_scaled(acc, scale, offset...);
  } else {
    acc = fma(to_f32((dot.sum() + ... + offset)), scale, acc);
  }
}

// Scale the integer sums of one group and add them to a token's accumulator.
template <class Format, bool kTwo, class Scales>
TIDEMILL_INLINE void finish_group(const typename Format::DotType& dot, const Scales& scales,
                                  const ActivationBlock& block, f32x16& acc) {
  const f32x16 scale = scales.scale * f32_splat(block.scale);
  if constexpr (Format::kKind == Kind::kAffine) {
    // The minimum first: it need not wait for the integer sums.
    acc = fma(scales.min, f32_splat(block.sum), acc);
    add_scaled<kTwo>(acc, dot, scale);
  } else if constexpr (Format::kKind == Kind::kOffset) {
    // An int16 pair of the offset, negated, times the block's two half sums.
    constexpr std::uint32_t half = static_cast<std::uint16_t>(-Format::kOffset);
    const i32x16 pairs = i32_splat(static_cast<std::int32_t>(half << 16 | half));
    add_scaled<kTwo>(acc, dot, scale, pair_dot(pairs, &block.sum_lo));
  } else if constexpr (Format::kKind == Kind::kSigned) {
    acc = fma(to_f32(dot.sum(&block.sum_lo)), scale, acc);
  } else {
    const i32x16 offset = pair_dot(scales.offset_pairs, &block.sum_lo);
    if constexpr (Format::kOneScale) {
      acc = fma(to_f32(dot.sum() + offset), scale, acc);
    } else {
      acc = fma(to_f32(dot.sum()), scale, acc);
      acc = fma(to_f32(offset), scales.offset_scale * f32_splat(block.scale), acc);
    }
  }
}

template <class Format, int T>
TIDEMILL_INLINE void add_group(const Tile& tile, int group, const ActivationBlock* const (&x)[T],
                               f32x16 (&acc)[T]) {
  using Dot = typename Format::DotType;
  const std::uint8_t* quants = tile.quants + static_cast<std::size_t>(group) * Format::kQuantBytes;
  if constexpr (Format::kPacked) {
    // Few tokens wait for memory. While this tile is read the next one is fetched, at the same
    // pace: hardware prefetchers stop at page ends and start anew for each of a tile's two parts.
    const std::uint8_t* next = tile.next + static_cast<std::size_t>(group) * Format::kGroupBytes;
    for (int line = 0; line < Format::kGroupBytes; line += 64) prefetch(next + line);
  }
  Dot dot[T];
  const auto activations = [&](int t, int quad) { return b64_quad(x[t][group].q + 4 * quad); };
  if constexpr (!Format::kPacked && TakesTwo<Dot>) {
    constexpr int kPairs = T / 2;
    unroll(std::make_integer_sequence<int, 8>{}, [&](auto quad) {
      constexpr int j = decltype(quad)::value;
      const b64 w = Format::template quad<j>(quants);
      unroll(std::make_integer_sequence<int, kPairs>{}, [&](auto pair) {
        constexpr int t = 2 * decltype(pair)::value;
        Dot::template add_two<j>(dot[t], dot[t + 1], w, activations(t, j), activations(t + 1, j));
      });
      if constexpr (T % 2 == 1) dot[T - 1].template add<j>(w, activations(T - 1, j));
    });
    // Scales are read only here: they would hold registers meanwhile.
    const auto scales = Format::scales(tile.scales, group);
    unroll(std::make_integer_sequence<int, T>{}, [&](auto token) {
      constexpr int t = decltype(token)::value;
      finish_group<Format, (t < 2 * kPairs)>(dot[t], scales, x[t][group], acc[t]);
    });
  } else {
    const auto scales = Format::scales(tile.scales, group);
    unroll(std::make_integer_sequence<int, 8>{}, [&](auto quad) {
      constexpr int j = decltype(quad)::value;
      const b64 w = Format::template quad<j>(quants);
      unroll(std::make_integer_sequence<int, T>{}, [&](auto token) {
        constexpr int t = decltype(token)::value;
        if constexpr (Format::kKind == Kind::kSub) {
          dot[t].template add<j>(w, activations(t, j), scales.factor_lo, scales.factor_hi);
        } else {
          dot[t].template add<j>(w, activations(t, j));
        }
      });
    });
    unroll(std::make_integer_sequence<int, T>{}, [&](auto token) {
      constexpr int t = decltype(token)::value;
      finish_group<Format, false>(dot[t], scales, x[t][group], acc[t]);
    });
  }
}

// acc[t] += the product of groups [begin, end) of a tile with token t. x[t] is the token's first
// block of the whole row. Accumulators are [T][16 rows]; `fresh` ones hold nothing yet.
template <class Format, int T>
[[gnu::noinline]] void accumulate(const Tile& tile, int begin, int end,
                                  const ActivationBlock* const* tokens, float* accumulators,
                                  bool fresh) {
  const ActivationBlock* x[T];
  f32x16 acc[T];
  // Unrolled, as all that touches acc: an index known at run time anywhere makes GCC keep a copy of
  // the accumulators in memory and write it with every group.
  constexpr std::make_integer_sequence<int, T> all{};
  unroll(all, [&](auto token) {
    constexpr int t = decltype(token)::value;
    x[t] = tokens[t];
    acc[t] = fresh ? f32_zero() : f32_load(accumulators + t * kTileRows);
  });
  for (int group = begin; group < end; ++group) add_group<Format, T>(tile, group, x, acc);
  unroll(all, [&](auto token) {
    constexpr int t = decltype(token)::value;
    f32_store(accumulators + t * kTileRows, acc[t]);
  });
}

// accumulate<Format, count> for a count known at run time only, 1 <= count <= kMost.
template <class Format, int kMost>
void accumulate_some(int count, const Tile& tile, int begin, int end,
                     const ActivationBlock* const* tokens, float* acc, bool fresh) {
  if constexpr (kMost == 1) {
    accumulate<Format, 1>(tile, begin, end, tokens, acc, fresh);
  } else if (count == kMost) {
    accumulate<Format, kMost>(tile, begin, end, tokens, acc, fresh);
  } else {
    accumulate_some<Format, kMost - 1>(count, tile, begin, end, tokens, acc, fresh);
  }
}

// ---- staging

// Unpacked groups: eight planes of bytes, then the scales as the micro-kernel wants them.
// kQuantBytes spans both, so that one group is one run of memory. Formats of one kind and dot
// product share one staged form.
template <class Dot>
struct StagedAffine : ByteQuants {
  static constexpr bool kPacked = false;
  static constexpr Kind kKind = Kind::kAffine;
  static constexpr int kQuantBytes = 512 + 2 * 64;
  using DotType = Dot;
  static TIDEMILL_INLINE void put_scales(std::uint8_t* p, const AffineScales& s) {
    f32_store(reinterpret_cast<float*>(p), s.scale);
    f32_store(reinterpret_cast<float*>(p + 64), s.min);
  }
  static TIDEMILL_INLINE AffineScales scales(const std::uint8_t* stage, int group) {
    const auto* p = reinterpret_cast<const float*>(stage + group * kQuantBytes);
    return {f32_load(p), f32_load(p + 16)};
  }
};

struct StagedOneScale : ByteQuants {
  static constexpr bool kPacked = false;
  static constexpr int kQuantBytes = 512 + 64;
  static TIDEMILL_INLINE void put_scales(std::uint8_t* p, const OneScale& s) {
    f32_store(reinterpret_cast<float*>(p), s.scale);
  }
  static TIDEMILL_INLINE OneScale scales(const std::uint8_t* stage, int group) {
    return {f32_load(reinterpret_cast<const float*>(stage + group * kQuantBytes))};
  }
};

template <class Dot, int offset>
struct StagedOffset : StagedOneScale {
  static constexpr Kind kKind = Kind::kOffset;
  static constexpr int kOffset = offset;
  using DotType = Dot;
};

template <class Dot>
struct StagedSigned : StagedOneScale {
  static constexpr Kind kKind = Kind::kSigned;
  using DotType = Dot;
};

template <class Dot, bool one_scale>
struct StagedSub : ByteQuants {
  static constexpr bool kPacked = false;
  static constexpr Kind kKind = Kind::kSub;
  static constexpr bool kOneScale = one_scale;
  static constexpr int kQuantBytes = 512 + 5 * 64;
  using DotType = Dot;
  static TIDEMILL_INLINE void put_scales(std::uint8_t* p, const SubScales& s) {
    f32_store(reinterpret_cast<float*>(p), s.scale);
    f32_store(reinterpret_cast<float*>(p + 64), s.offset_scale);
    i32_store(p + 128, s.factor_lo);
    i32_store(p + 192, s.factor_hi);
    i32_store(p + 256, s.offset_pairs);
  }
  static TIDEMILL_INLINE SubScales scales(const std::uint8_t* stage, int group) {
    const std::uint8_t* p = stage + group * kQuantBytes;
    return {f32_load(reinterpret_cast<const float*>(p)),
            f32_load(reinterpret_cast<const float*>(p + 64)), i32_load(p + 128), i32_load(p + 192),
            i32_load(p + 256)};
  }
};

template <class Format>
struct StagedForm;
template <class Format>
  requires(Format::kKind == Kind::kAffine)
struct StagedForm<Format> {
  using Type = StagedAffine<typename Format::DotType>;
};
template <class Format>
  requires(Format::kKind == Kind::kOffset)
struct StagedForm<Format> {
  using Type = StagedOffset<typename Format::DotType, Format::kOffset>;
};
template <class Format>
  requires(Format::kKind == Kind::kSigned)
struct StagedForm<Format> {
  using Type = StagedSigned<typename Format::DotType>;
};
template <class Format>
  requires(Format::kKind == Kind::kSub)
struct StagedForm<Format> {
  using Type = StagedSub<typename Format::DotType, Format::kOneScale>;
};
template <class Format>
using Staged = typename StagedForm<Format>::Type;

template <class Format>
void stage_groups(const Tile& tile, int begin, int end, std::uint8_t* stage) {
  using To = Staged<Format>;
  for (int group = begin; group < end; ++group, stage += To::kQuantBytes) {
    const std::uint8_t* quants =
        tile.quants + static_cast<std::size_t>(group) * Format::kQuantBytes;
    unroll(std::make_integer_sequence<int, 8>{}, [&](auto quad) {
      constexpr int j = decltype(quad)::value;
      b64_store(stage + 64 * j, Format::template quad<j>(quants));
    });
    To::put_scales(stage + 512, Format::scales(tile.scales, group));
  }
}

// ---- drivers

TIDEMILL_INLINE std::ptrdiff_t row_of(const std::int32_t* rows, int token) {
  return rows == nullptr ? token : rows[token];
}

// Add the bias of a tile's rows and write its columns of one output row.
TIDEMILL_INLINE void write_output(const Matmul& m, int tile, int token, f32x16 acc) {
  const int first = tile * kTileRows;
  const int rows = m.weights.rows - first < kTileRows ? m.weights.rows - first : kTileRows;
  float* out = m.out + row_of(m.out_rows, token) * m.out_stride + first;
  if (rows == kTileRows) {
    if (m.bias != nullptr) acc = acc + f32_load(m.bias + first);
    f32_store(out, acc);
  } else {
    if (m.bias != nullptr) acc = acc + f32_load_n(m.bias + first, rows);
    f32_store_n(out, acc, rows);
  }
}

template <class Format>
TIDEMILL_INLINE Tile packed_tile(const PackedMatrix& w, int tile) {
  const std::uint8_t* data = w.data + static_cast<std::size_t>(tile) * w.tile_bytes;
  return {data, data + static_cast<std::size_t>(w.cols / kGroup) * Format::kQuantBytes,
          tile + 1 < w.tiles() ? data + w.tile_bytes : data};
}

// How many tokens the next micro-kernel takes of those that are left: as even a split as possible,
// for one token alone uses a micro-kernel badly (5 = 3 + 2 rather than 4 + 1).
TIDEMILL_INLINE int next_tokens(int left, int most) {
  if (left == most || left >= 2 * most) return most;
  const int parts = (left + most - 1) / most;
  return (left + parts - 1) / parts;
}

// One token waits for memory, which serves several streams at once faster than one: so
// many stretches of the tiles are read side by side. More streams lose it again where the matrix
// is small or its format takes long to unpack.
inline constexpr int kStreams = 2;

// sums[k] = the product of tiles[k] with a token.
template <class Format>
[[gnu::noinline]] void accumulate_streams(const Tile (&tiles)[kStreams], int groups,
                                          const ActivationBlock* token,
                                          f32x16 (&sums)[kStreams]) {
  const ActivationBlock* const x[1] = {token};
  f32x16 acc[kStreams][1];
  for (auto& stream : acc) stream[0] = f32_zero();
  for (int group = 0; group < groups; ++group) {
    unroll(std::make_integer_sequence<int, kStreams>{}, [&](auto stream) {
      constexpr int k = decltype(stream)::value;
      add_group<Format, 1>(tiles[k], group, x, acc[k]);
    });
  }
  for (int k = 0; k < kStreams; ++k) sums[k] = acc[k][0];
}

// One token with as many tiles as all streams have; gives the first that is left.
template <class Format>
int multiply_streams(const Matmul& m, const ActivationBlock* token) {
  const int length = (m.tile_end - m.tile_begin) / kStreams;
  for (int i = 0; i < length; ++i) {
    Tile tiles[kStreams];
    f32x16 sums[kStreams];
    const auto tile = [&](int k) { return m.tile_begin + k * length + i; };
    for (int k = 0; k < kStreams; ++k) tiles[k] = packed_tile<Format>(m.weights, tile(k));
    accumulate_streams<Format>(tiles, m.weights.cols / kGroup, token, sums);
    for (int k = 0; k < kStreams; ++k) write_output(m, tile(k), 0, sums[k]);
  }
  return m.tile_begin + kStreams * length;
}

// Straight from the packed tiles, which stay in the L1 cache if there is a second pass.
template <class Format>
void multiply_few(const Matmul& m) {
  const ActivationBlock* x[Format::kDirectPasses * kDirectTokens];
  for (int t = 0; t < m.tokens; ++t) x[t] = m.blocks + row_of(m.x_rows, t) * m.x_stride;
  int tile = m.tokens == 1 ? multiply_streams<Format>(m, x[0]) : m.tile_begin;
  for (; tile < m.tile_end; ++tile) {
    const Tile packed = packed_tile<Format>(m.weights, tile);
    for (int t = 0; t < m.tokens;) {
      const int count = next_tokens(m.tokens - t, kDirectTokens);
      alignas(64) float acc[kDirectTokens * kTileRows];
      accumulate_some<Format, kDirectTokens>(count, packed, 0, m.weights.cols / kGroup, x + t, acc,
                                             true);
      for (int i = 0; i < count; ++i) write_output(m, tile, t + i, f32_load(acc + i * kTileRows));
      t += count;
    }
  }
}

// Tokens [first, last) of the call, at most kMostBlockTokens.
template <class Format>
void multiply_block(const Matmul& m, int first, int last) {
  const ActivationBlock* x[kMostBlockTokens];
  alignas(64) float acc[kMostBlockTokens * kTileRows];
  alignas(64) std::uint8_t stage[kStageGroups * Staged<Format>::kQuantBytes];
  const int tokens = last - first;
  const int groups = m.weights.cols / kGroup;
  // Stretches of nearly equal length.
  const int stretches = (groups + kStageGroups - 1) / kStageGroups;
  const int length = (groups + stretches - 1) / stretches;

  for (int t = 0; t < tokens; ++t) x[t] = m.blocks + row_of(m.x_rows, first + t) * m.x_stride;
  for (int tile = m.tile_begin; tile < m.tile_end; ++tile) {
    const Tile packed = packed_tile<Format>(m.weights, tile);
    for (int begin = 0; begin < groups; begin += length) {
      const int end = begin + length < groups ? begin + length : groups;
      stage_groups<Format>(packed, begin, end, stage);
      const Tile staged = {stage, stage + 512, nullptr};
      // The same stretch of the next tile is fetched meanwhile, some lines with each micro-kernel.
      const std::size_t first_line = static_cast<std::size_t>(begin) * Format::kGroupBytes;
      const int lines = (end - begin) * Format::kGroupBytes / 64 + 1;
      const int calls = (tokens + kStagedTokens - 1) / kStagedTokens;
      const int step = (lines + calls - 1) / calls;
      const std::uint8_t* next = packed.next + first_line;
      const std::uint8_t* next_end = next + static_cast<std::size_t>(lines) * 64;
      const ActivationBlock* from[kStagedTokens];
      for (int t = 0; t < tokens;) {
        const int count = next_tokens(tokens - t, kStagedTokens);
        for (int i = 0; i < count; ++i) from[i] = x[t + i] + begin;
        for (int line = 0; line < step && next < next_end; ++line, next += 64) prefetch(next);
        accumulate_some<Staged<Format>, kStagedTokens>(count, staged, 0, end - begin, from,
                                                       acc + t * kTileRows, begin == 0);
        t += count;
      }
    }
    for (int t = 0; t < tokens; ++t) {
      write_output(m, tile, first + t, f32_load(acc + t * kTileRows));
    }
  }
}

template <TensorType type>
void multiply_quantized(const Matmul& m) {
  using Format = FormatOf<type>;
  if (m.tokens <= 0) return;
  if (m.tokens <= Format::kDirectPasses * kDirectTokens) {
    multiply_few<Format>(m);
    return;
  }
  const auto token_bytes =
      static_cast<std::size_t>(m.weights.cols / kGroup) * sizeof(ActivationBlock);
  int block = static_cast<int>(kBlockBytes / token_bytes) / kStagedTokens * kStagedTokens;
  if (block < 4 * kStagedTokens) block = 4 * kStagedTokens;
  if (block > kMostBlockTokens) block = kMostBlockTokens;
  for (int first = 0; first < m.tokens; first += block) {
    multiply_block<Format>(m, first, first + block < m.tokens ? first + block : m.tokens);
  }
}

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
