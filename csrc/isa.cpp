// Which kernel tables are built in, which of them this CPU runs, and which one is used.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tidemill {

// The build defines TIDEMILL_HAVE_<ISA> for each unit it compiles.
extern const KernelTable kPortableKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kNeonKernels;

namespace {

struct Available {
  const KernelTable* tables[4];
  int count = 0;

  void add(const KernelTable& table) { tables[count++] = &table; }
};

// Best first. __builtin_cpu_supports also asks whether the operating system saves the registers.
Available detect() {
  Available found;
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
#if defined(TIDEMILL_HAVE_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni")) {
    found.add(kAvx512Kernels);
  }
#endif
#if defined(TIDEMILL_HAVE_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    found.add(kAvx2Kernels);
  }
#endif
#if defined(TIDEMILL_HAVE_NEON) && defined(__linux__)
  const unsigned long caps = getauxval(AT_HWCAP);
  if ((caps & HWCAP_ASIMDDP) != 0 && (caps & HWCAP_ASIMDHP) != 0) found.add(kNeonKernels);
#elif defined(TIDEMILL_HAVE_NEON) && defined(__APPLE__)
  found.add(kNeonKernels);  // every Apple arm64 CPU since M1 has both extensions
#endif
  found.add(kPortableKernels);
  return found;
}

const Available& available() {
  static const Available found = detect();
  return found;
}

const KernelTable& choose() {
  const char* wanted = std::getenv("TIDEMILL_ISA");
  if (wanted == nullptr || *wanted == '\0') return *available().tables[0];
  if (const KernelTable* table = find_kernels(wanted)) return *table;
  std::string message = "TIDEMILL_ISA=" + std::string(wanted) +
                        " names no kernels that this CPU can run; set it to one of:";
  for (int i = 0; i < available().count; ++i) message += std::string(" ") + available().tables[i]->isa;
  throw std::runtime_error(message + ", or unset it");
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

const KernelTable* find_kernels(const char* isa) {
  const Available& found = available();
  for (int i = 0; i < found.count; ++i) {
    if (std::strcmp(found.tables[i]->isa, isa) == 0) return found.tables[i];
  }
  return nullptr;
}

const KernelTable* const* available_kernels(int* count) {
  *count = available().count;
  return available().tables;
}

}  // namespace tidemill
