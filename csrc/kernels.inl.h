// All kernel families of one instruction set. Included once by each kernels_<isa>.cpp, which defines
// TIDEMILL_ISA (the namespace) and TIDEMILL_ISA_<NAME> first; kernels.h says how it fits together.
#pragma once

#include "kernels.h"
#include "simd.h"

// Families, in any order.
#include "attention.inl.h"
#include "matmul.inl.h"
#include "matmul_float.inl.h"
#include "quantize.inl.h"
#include "rows.inl.h"
#include "sampling.inl.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

constexpr KernelTable make_kernel_table(const char* isa) {
  return {
      .isa = isa,
      .matmul = matmul_kernels(),
      .attention = attention_kernels(),
      .rows = row_kernels(),
      .sampling = sampling_kernels(),
  };
}

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
