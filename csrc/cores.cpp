#include "cores.h"

#include <cstdio>
#include <map>
#include <string>

namespace tidemill {

#if defined(__linux__)

namespace {

// The first of the logical CPUs that share a physical core with this one; itself if not told.
int core_of(int cpu) {
  const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
  // The second is its name before Linux 5.3.
  for (const char* name : {"core_cpus_list", "thread_siblings_list"}) {
    std::FILE* file = std::fopen((folder + name).c_str(), "re");
    if (file == nullptr) continue;
    int first = cpu;
    const bool read = std::fscanf(file, "%d", &first) == 1;
    std::fclose(file);
    if (read) return first;
  }
  return cpu;
}

}  // namespace

std::vector<CpuSet> cores_of_team(int size) {
  cpu_set_t allowed;
  if (size < 2 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  if (CPU_COUNT(&allowed) < size) return {};
  std::map<int, CpuSet> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &cores[core_of(cpu)]);
  }
  if (cores.size() != static_cast<std::size_t>(size)) return {};
  std::vector<CpuSet> sets;
  for (const auto& [core, cpus] : cores) sets.push_back(cpus);
  return sets;
}

Placed::Placed(const CpuSet* cpus) {
  if (cpus == nullptr || sched_getaffinity(0, sizeof before_, &before_) != 0) return;
  cpu_set_t both;
  CPU_AND(&both, &before_, cpus);
  placed_ = CPU_EQUAL(&both, cpus) && sched_setaffinity(0, sizeof *cpus, cpus) == 0;
}

Placed::~Placed() {
  if (placed_) sched_setaffinity(0, sizeof before_, &before_);
}

void place(const CpuSet& cpus) { sched_setaffinity(0, sizeof cpus, &cpus); }

#else

std::vector<CpuSet> cores_of_team(int) { return {}; }
Placed::Placed(const CpuSet*) {}
Placed::~Placed() = default;
void place(const CpuSet&) {}

#endif

}  // namespace tidemill
