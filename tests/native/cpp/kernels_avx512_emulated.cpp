// csrc/kernels_avx512.cpp over emulated intrinsics, for self-tests on CPUs without AVX-512.
#include "avx512_emulated.h"

#include "kernels_avx512.cpp"
