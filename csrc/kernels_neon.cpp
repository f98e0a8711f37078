// Kernels for NEON with the dot product and half-precision extensions (Armv8.2).
#define TIDEMILL_ISA neon
#define TIDEMILL_ISA_NEON
#include "kernels.inl.h"

namespace tidemill {

extern const KernelTable kNeonKernels;
constinit const KernelTable kNeonKernels = neon::make_kernel_table("neon");

}  // namespace tidemill
