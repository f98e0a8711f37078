// The vector operations that kernels are written over, specialised for one instruction set.
//
// For units that are compiled with TIDEMILL_ISA (the namespace) and one of
// TIDEMILL_ISA_{PORTABLE,AVX2,AVX512,NEON} defined; kernels.h says how. There is one vector width
// for all: 16 lanes, i.e. one 512-bit register, two of 256 bits or four of 128. So a kernel reads
// the same everywhere, sums are folded in the same order everywhere, and two-wide types hide
// latency where registers are short.
//
//   f32x16   16 floats          i32x16   16 int32          mask16   16 truth values
//   b64      64 bytes: for each of 16 rows 4 bytes (row r owns bytes 4r..4r+3)
//
// Each simd_<isa>.h defines, as free functions (f = f32x16, i = i32x16, b = b64, m = mask16):
//
//   f32_splat(x) f32_zero() f32_load(p) f32_load_n(p, n) f32_store(p, f) f32_store_n(p, f, n)
//       _n: the first n lanes only, 0 <= n <= 16; loads fill the rest with zero. Any alignment.
//   f32_load_f16(p) f32_load_bf16(p) f32_store_f16(p, f)          16 halves at a const uint16_t*
//   f32_load_bf16_split(p)         the same in the order that is cheapest to load; f32_unsplit(f)
//       brings lanes of that order back into their own
//   operators + - * / on f; fma(a, b, c) = a * b + c (one rounding, except on portable)
//   min(a, b) max(a, b) abs(f) sqrt(f)
//   reduce_add(f) reduce_max(f)    folded 16 -> 8 -> 4 -> 2 -> 1 (lane i with lane i + width / 2)
//   less(a, b) -> m, select(m, a, b) = m ? a : b, lane-wise
//   i32_splat(x) i32_load(p) i32_store(p, i), operators + - & | on i, i32_max(a, b),
//   reduce_add(i) reduce_max(i)
//   shift_left<n>(i) shift_right<n>(i) (logical)
//   to_f32(i) round_to_i32(f) (nearest, ties to even) as_f32(i) as_i32(f) (same bits)
//   b64_load(p) b64_splat(x), b64_quad(p): the 4 bytes at p for each of the 16 rows
//   operators & | ^ on b, shift_left16<n>(b) shift_right16<n>(b): 16-bit lanes, logical
//   lookup16(table, b): table[byte] for bytes < 16; `table` from b64_table(p), 16 bytes at p
//   i32_load_u8(p) i32_load_i8(p): 16 bytes widened
//   store_i8(p, i): 16 int32 in [-128, 127] as 16 bytes
//   prefetch(p)
//
// kDirectTokens, kStagedTokens, kFloatTokens: how many tokens a micro-kernel of matmul.inl.h takes
// at once, from the number of registers; kCheapPasses: how many passes over a packed tile cost less
// than unpacking it once, where that takes an operation or two; kAttendSums, kKeptFactors: how many
// sums of 16 lanes attention has at once, and how many rows' factors stay in registers beside them.
// And the integer dot products over one group of 32 columns (see the files):
//
//   DotU<max>   bytes of weights in [0, max]
//   DotS        bytes of weights in [-128, 127]
//   DotSub<max> as DotU, with an integer factor for columns 0..15 and another for 16..31
#pragma once

#ifndef TIDEMILL_ISA
#error "simd.h is specialised per instruction set: see kernels.h"
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define TIDEMILL_INLINE __attribute__((always_inline)) inline

#if defined(TIDEMILL_ISA_AVX2)
#include "simd_avx2.h"
#elif defined(TIDEMILL_ISA_AVX512)
#include "simd_avx512.h"
#elif defined(TIDEMILL_ISA_NEON)
#include "simd_neon.h"
#elif defined(TIDEMILL_ISA_PORTABLE)
#include "simd_portable.h"
#else
#error "no instruction set chosen"
#endif
