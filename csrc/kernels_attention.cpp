// The attention kernels of one instruction set; kernels.h says how it fits together.
#include "attention.inl.h"

namespace tidemill::TIDEMILL_ISA {

extern const AttentionKernels kAttentionKernels;
constinit const AttentionKernels kAttentionKernels = attention_kernels();

}  // namespace tidemill::TIDEMILL_ISA
