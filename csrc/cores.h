// Which logical CPUs each member of a thread team may use, so that no two share a core.
#pragma once

#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace tidemill {

#if defined(__linux__)
using CpuSet = cpu_set_t;
#else
struct CpuSet {};
#endif

// One set a member, each the CPUs of one physical core, if the calling thread may use exactly
// `size` physical cores (and at least two); else none: with cores to spare the system finds free
// ones by itself, and with too few there is nothing to choose.
std::vector<CpuSet> cores_of_team(int size);

// Keeps the calling thread on `cpus` while it lives, then where it was allowed before. Does nothing
// where the thread may not use all of them, or the system refuses.
class Placed {
 public:
  explicit Placed(const CpuSet* cpus);
  ~Placed();
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;

 private:
  bool placed_ = false;
  CpuSet before_{};
};

// The same for good.
void place(const CpuSet& cpus);

}  // namespace tidemill
