// The function table of one instruction set, and the choice among them at run time.
//
// How kernels are built. Every kernel is written once, in a `<family>.inl.h`, over the vector types
// of simd.h, inside `namespace tidemill::TIDEMILL_ISA`. The three units kernels_matmul.cpp,
// kernels_attention.cpp and kernels_rows.cpp are compiled once for each instruction set, with its
// flags and with TIDEMILL_ISA (the namespace) and TIDEMILL_ISA_<NAME> defined (CMakeLists.txt); the
// last one exports its `const KernelTable`. So one build holds all tables that its architecture
// knows, and one binary runs on every CPU of that architecture.
//
// To add a family:
//   1. `<family>_kernels.h`: a struct of function pointers (plain types only, no vector types);
//   2. `<family>.inl.h`: the kernels in namespace tidemill::TIDEMILL_ISA, and a function
//      `constexpr <Family>Kernels <family>_kernels()` there that fills the struct;
//   3. one #include and one field in this file, one #include and two lines in kernels_rows.cpp (or
//      a unit of its own, if it takes seconds to compile).
//
// Rules of .inl.h files (they are compiled several times with different flags):
//   - everything inside `namespace tidemill::TIDEMILL_ISA { namespace { ... } }`: internal linkage,
//     so that the linker cannot pick the AVX-512 copy of a function for an older CPU;
//   - for the same reason no std:: containers, algorithms or other inline library code, whose
//     out-of-line copies are shared between the units (<cmath>'s and <cstring>'s C functions are
//     fine);
//   - no state, no allocation, no exceptions.
// On the caller's side: code outside these files is compiled for the baseline CPU.
#pragma once

#include "attention.h"
#include "matmul_kernels.h"
#include "rows_kernels.h"
#include "sampling_kernels.h"

namespace tidemill {

struct KernelTable {
  const char* isa;  // "portable", "avx2", "avx512", "neon"
  const MatmulKernels& matmul;
  const AttentionKernels& attention;
  const RowKernels& rows;
  const SamplingKernels& sampling;
};

// The table in use: the best that this CPU runs, or the one named by the environment variable
// TIDEMILL_ISA. Chosen at the first call. Throws std::runtime_error if TIDEMILL_ISA names a table
// that is unknown or that this CPU cannot run.
const KernelTable& kernels();

// The table of that name, or kernels() for "". Throws std::invalid_argument, with the names there
// are, for one that is not built in or that this CPU cannot run.
const KernelTable& kernels_named(const char* isa);

// Tables that this CPU can run, best first; `count` receives how many. Never empty.
const KernelTable* const* available_kernels(int* count);

}  // namespace tidemill
