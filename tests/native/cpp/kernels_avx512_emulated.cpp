// The AVX-512 kernels over emulated intrinsics, for self-tests on CPUs without AVX-512.
#define TIDEMILL_ISA avx512
#define TIDEMILL_ISA_AVX512
#include "avx512_emulated.h"

#include "kernels_attention.cpp"
#include "kernels_matmul.cpp"
#include "kernels_rows.cpp"
