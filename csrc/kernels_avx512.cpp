// Kernels for AVX-512 with VNNI.
#define TIDEMILL_ISA avx512
#define TIDEMILL_ISA_AVX512
#include "kernels.inl.h"

namespace tidemill {

extern const KernelTable kAvx512Kernels;
constinit const KernelTable kAvx512Kernels = avx512::make_kernel_table("avx512");

}  // namespace tidemill
