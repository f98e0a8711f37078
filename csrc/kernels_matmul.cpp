// The matmul kernels of one instruction set; kernels.h says how it fits together.
#include "matmul_float.inl.h"

namespace tidemill::TIDEMILL_ISA {

extern const MatmulKernels kMatmulKernels;
constinit const MatmulKernels kMatmulKernels = matmul_kernels();

}  // namespace tidemill::TIDEMILL_ISA
