#include "hardware.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <thread>

#include "arena.h"
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace tidemill {

#if defined(__x86_64__)

namespace {

struct Regs {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Regs cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  Regs r;
  if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return {};
  return r;
}

// XCR0: which register states the operating system saves on a context switch. A CPU can have
// AVX-512 while the kernel or hypervisor does not let anyone use it.
std::uint64_t enabled_states() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

}  // namespace

std::vector<std::string> cpu_features() {
  std::vector<std::string> found;
  const Regs l1 = cpuid(1), l7 = cpuid(7), l71 = cpuid(7, 1);
  const auto add = [&](bool present, const char* name) {
    if (present) found.emplace_back(name);
  };
  const auto bit = [](std::uint32_t word, int n) { return ((word >> n) & 1u) != 0; };

  add(bit(l1.ecx, 9), "ssse3");
  add(bit(l1.ecx, 20), "sse4_2");
  const std::uint64_t states = bit(l1.ecx, 27) ? enabled_states() : 0;
  const bool ymm = (states & 0x6) == 0x6;                 // SSE and AVX state
  const bool zmm = ymm && (states & 0xe0) == 0xe0;        // opmask, upper ZMM, ZMM16-31
  const bool tiles = (states & 0x60000) == 0x60000;       // AMX tile configuration and data

  add(ymm && bit(l1.ecx, 28), "avx");
  add(ymm && bit(l1.ecx, 29), "f16c");
  add(ymm && bit(l1.ecx, 12), "fma");
  add(ymm && bit(l7.ebx, 5), "avx2");
  add(bit(l7.ebx, 8), "bmi2");
  add(ymm && bit(l71.eax, 4), "avx_vnni");
  add(zmm && bit(l7.ebx, 16), "avx512f");
  add(zmm && bit(l7.ebx, 17), "avx512dq");
  add(zmm && bit(l7.ebx, 30), "avx512bw");
  add(zmm && bit(l7.ebx, 31), "avx512vl");
  add(zmm && bit(l7.ecx, 1), "avx512_vbmi");
  add(zmm && bit(l7.ecx, 11), "avx512_vnni");
  add(zmm && bit(l71.eax, 5), "avx512_bf16");
  add(zmm && bit(l7.edx, 23), "avx512_fp16");
  add(tiles && bit(l7.edx, 24), "amx_tile");
  add(tiles && bit(l7.edx, 25), "amx_int8");
  add(tiles && bit(l7.edx, 22), "amx_bf16");
  return found;
}

#elif defined(__aarch64__) && defined(__linux__)

std::vector<std::string> cpu_features() {
  // Bit numbers of AT_HWCAP and AT_HWCAP2 from the kernel's "ARM64 ELF hwcaps" page; spelled out
  // because the C library may be older than the kernel.
  struct Bit {
    unsigned long type;
    int n;
    const char* name;
  };
  static constexpr Bit kBits[] = {
      {AT_HWCAP, 1, "asimd"},    {AT_HWCAP, 10, "asimdhp"}, {AT_HWCAP, 20, "asimddp"},
      {AT_HWCAP, 22, "sve"},     {AT_HWCAP2, 1, "sve2"},    {AT_HWCAP2, 13, "i8mm"},
      {AT_HWCAP2, 14, "bf16"},   {AT_HWCAP2, 23, "sme"},
  };
  std::vector<std::string> found;
  for (const Bit& b : kBits) {
    if ((getauxval(b.type) >> b.n) & 1ul) found.emplace_back(b.name);
  }
  return found;
}

#elif defined(__aarch64__) && defined(__APPLE__)

std::vector<std::string> cpu_features() {
  struct Key {
    const char* sysctl;
    const char* name;
  };
  static constexpr Key kKeys[] = {
      {"hw.optional.arm.FEAT_FP16", "asimdhp"}, {"hw.optional.arm.FEAT_DotProd", "asimddp"},
      {"hw.optional.arm.FEAT_I8MM", "i8mm"},    {"hw.optional.arm.FEAT_BF16", "bf16"},
      {"hw.optional.arm.FEAT_SME", "sme"},
  };
  std::vector<std::string> found{"asimd"};
  for (const Key& k : kKeys) {
    int value = 0;
    std::size_t size = sizeof value;
    if (sysctlbyname(k.sysctl, &value, &size, nullptr, 0) == 0 && value != 0) {
      found.emplace_back(k.name);
    }
  }
  return found;
}

#else

std::vector<std::string> cpu_features() { return {}; }

#endif

namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

}  // namespace

double read_bandwidth(std::size_t bytes_per_thread, int threads, double seconds) {
  using Clock = std::chrono::steady_clock;
  const std::size_t chunks = bytes_per_thread / kChunk > 0 ? bytes_per_thread / kChunk : 1;
  // The best kernels there are, whatever TIDEMILL_ISA asks for: this is the machine's limit.
  int tables = 0;
  const auto read = available_kernels(&tables)[0]->matmul.read_memory;

  std::atomic<int> ready{0};
  std::atomic<bool> go{false}, failed{false};
  Clock::time_point start;  // written before `go` is released
  std::vector<double> rates(static_cast<std::size_t>(threads), 0.0);

  const auto work = [&](std::size_t index) {
    AlignedBuffer buffer;
    try {
      buffer = AlignedBuffer(chunks * kChunk);
      std::memset(buffer.data(), 1, buffer.size());  // untouched pages are not there
    } catch (const std::bad_alloc&) {
      failed.store(true);
    }
    const auto* data = reinterpret_cast<const std::uint8_t*>(buffer.data());
    ready.fetch_add(1);
    go.wait(false);
    if (failed.load()) return;
    const auto deadline =
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    std::uint64_t done = 0;
    Clock::time_point now;
    do {
      read(data + (done % chunks) * kChunk, kChunk);
      ++done;
      now = Clock::now();
    } while (now < deadline);
    rates[index] = static_cast<double>(done) * static_cast<double>(kChunk) /
                   std::chrono::duration<double>(now - start).count();
  };

  std::vector<std::thread> team;
  std::exception_ptr error;
  try {
    team.reserve(static_cast<std::size_t>(threads));
    for (int i = 0; i < threads; ++i) team.emplace_back(work, static_cast<std::size_t>(i));
  } catch (...) {  // the threads that did start must be let go before this frame is left
    error = std::current_exception();
    failed.store(true);
  }
  while (ready.load() < static_cast<int>(team.size())) std::this_thread::yield();
  start = Clock::now();
  go.store(true);
  go.notify_all();
  for (std::thread& t : team) t.join();
  if (error) std::rethrow_exception(error);
  if (failed.load()) throw std::bad_alloc();

  double sum = 0.0;
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace tidemill
