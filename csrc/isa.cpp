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

// The build defines TIDEMILL_HAVE_<ISA> for each instruction set that it compiles the kernels for.
namespace portable { extern const KernelTable kKernels; }
namespace avx2 { extern const KernelTable kKernels; }
namespace avx512 { extern const KernelTable kKernels; }
namespace neon { extern const KernelTable kKernels; }

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
    found.add(avx512::kKernels);
  }
#endif
#if defined(TIDEMILL_HAVE_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    found.add(avx2::kKernels);
  }
#endif
#if defined(TIDEMILL_HAVE_NEON) && defined(__linux__)
  const unsigned long caps = getauxval(AT_HWCAP);
  if ((caps & HWCAP_ASIMDDP) != 0 && (caps & HWCAP_ASIMDHP) != 0) found.add(neon::kKernels);
#elif defined(TIDEMILL_HAVE_NEON) && defined(__APPLE__)
  found.add(neon::kKernels);  // every Apple arm64 CPU since M1 has both extensions
#endif
  found.add(portable::kKernels);
  return found;
}

const Available& available() {
  static const Available found = detect();
  return found;
}

const KernelTable* find(const char* isa) {
  const Available& found = available();
  for (int i = 0; i < found.count; ++i) {
    if (std::strcmp(found.tables[i]->isa, isa) == 0) return found.tables[i];
  }
  return nullptr;
}

std::string names() {
  std::string list;
  for (int i = 0; i < available().count; ++i) {
    list += std::string(i == 0 ? "" : " ") + available().tables[i]->isa;
  }
  return list;
}

const KernelTable& choose() {
  const char* wanted = std::getenv("TIDEMILL_ISA");
  if (wanted == nullptr || *wanted == '\0') return *available().tables[0];
  if (const KernelTable* table = find(wanted)) return *table;
  throw std::runtime_error("TIDEMILL_ISA=" + std::string(wanted) +
                           " names no kernels that this CPU can run; set it to one of: " +
                           names() + ", or unset it");
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

const KernelTable& kernels_named(const char* isa) {
  if (*isa == '\0') return kernels();
  if (const KernelTable* table = find(isa)) return *table;
  throw std::invalid_argument("this CPU cannot run kernels named '" + std::string(isa) +
                              "'; it runs: " + names());
}

const KernelTable* const* available_kernels(int* count) {
  *count = available().count;
  return available().tables;
}

}  // namespace tidemill
