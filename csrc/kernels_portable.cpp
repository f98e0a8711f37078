// Kernels in plain C++, for the baseline CPU of the architecture.
#define TIDEMILL_ISA portable
#define TIDEMILL_ISA_PORTABLE
#include "kernels.inl.h"

namespace tidemill {

extern const KernelTable kPortableKernels;
constinit const KernelTable kPortableKernels = portable::make_kernel_table("portable");

}  // namespace tidemill
