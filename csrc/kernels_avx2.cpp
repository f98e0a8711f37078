// Kernels for AVX2, FMA and F16C (x86-64-v3).
#define TIDEMILL_ISA avx2
#define TIDEMILL_ISA_AVX2
#include "kernels.inl.h"

namespace tidemill {

extern const KernelTable kAvx2Kernels;
constinit const KernelTable kAvx2Kernels = avx2::make_kernel_table("avx2");

}  // namespace tidemill
