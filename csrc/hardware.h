// What the machine is and how fast it reads memory: for `tidemill doctor` and for planning.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tidemill {

// Instruction-set extensions that both the CPU and the operating system support, by their usual
// names ("avx2", "avx512_vnni", "asimddp" ...); empty on an architecture that is not known.
std::vector<std::string> cpu_features();

// Streaming-read bandwidth in bytes per second over all threads together. Each thread reads its
// own `bytes_per_thread` (touched by itself first, so that it lies on its NUMA node) again and
// again until `seconds` have passed. Throws std::bad_alloc, std::system_error.
double read_bandwidth(std::size_t bytes_per_thread, int threads, double seconds);

}  // namespace tidemill
