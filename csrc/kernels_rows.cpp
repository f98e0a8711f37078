// The row and sampling kernels of one instruction set, which compile quickly, and its table;
// kernels.h says how it fits together.
#include "kernels.h"
#include "rows.inl.h"
#include "sampling.inl.h"

#define TIDEMILL_NAME_OF(isa) #isa
#define TIDEMILL_NAME(isa) TIDEMILL_NAME_OF(isa)

namespace tidemill::TIDEMILL_ISA {

extern const MatmulKernels kMatmulKernels;
extern const AttentionKernels kAttentionKernels;

namespace {
constinit const RowKernels kRowKernels = row_kernels();
constinit const SamplingKernels kSamplingKernels = sampling_kernels();
}  // namespace

extern const KernelTable kKernels;
constinit const KernelTable kKernels = {
    .isa = TIDEMILL_NAME(TIDEMILL_ISA),
    .matmul = kMatmulKernels,
    .attention = kAttentionKernels,
    .rows = kRowKernels,
    .sampling = kSamplingKernels,
};

}  // namespace tidemill::TIDEMILL_ISA
