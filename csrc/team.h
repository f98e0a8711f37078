// The thread team: the caller and size - 1 workers that run the same job side by side.
//
// Waiting is spin-then-park: a short bounded spin (a step is a chain of barriers microseconds
// apart), then a futex wait, so that a waiting member gives its core away when the machine is busy
// or when no work comes. An exception in any member is rethrown to the caller of run(); members
// that wait at a barrier meanwhile are released. Workers block all signals, so Ctrl-C reaches the
// program's own threads. A team that has a member for each core keeps each on its own: two that
// share one while another process has the other would wait for each other by slices of the
// system's, at every barrier. The caller is kept there within run() only. Threads do not survive
// fork(): using a team in a child process throws.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include <sys/types.h>

#include "cores.h"

namespace tidemill {

class Team {
 public:
  // Starts size - 1 workers. Throws std::invalid_argument unless 1 <= size <= kMaxSize.
  // A team that works now and then only does well to park at once: its members wait on cores that
  // others' need meanwhile.
  explicit Team(int size, bool seldom = false);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  static constexpr int kMaxSize = 1024;

  int size() const { return size_; }

  // Runs job(rank) on every member, rank 0 on the calling thread, and returns when all are done.
  // Rethrows the first exception that a member threw. One run at a time; others wait their turn.
  // Throws std::logic_error when called in a forked child.
  template <class Job>
  void run(Job&& job) {
    using Plain = std::remove_reference_t<Job>;
    run_erased([](void* context, int rank) { (*static_cast<Plain*>(context))(rank); },
               const_cast<void*>(static_cast<const void*>(std::addressof(job))));
  }

  // Inside a run: returns when every member has arrived, or throws Aborted once a member failed.
  void barrier();

  // What barrier() throws in the members that did not fail themselves.
  struct Aborted {};

 private:
  using Erased = void (*)(void* context, int rank);
  void run_erased(Erased job, void* context);
  void work(int rank);
  void perform(int rank) noexcept;
  void fail(std::exception_ptr error);
  void stop();

  const int size_;
  const int spins_;
  const pid_t owner_;
  const std::vector<CpuSet> cores_;  // of each member, or none
  std::mutex turn_;
  std::vector<std::thread> workers_;

  Erased job_ = nullptr;
  void* context_ = nullptr;
  std::mutex error_mutex_;
  std::exception_ptr error_;

  // Each on a cache line of its own: they are written by one member while others spin on them.
  alignas(64) std::atomic<std::uint32_t> epoch_{0};       // one up per run
  alignas(64) std::atomic<std::uint32_t> pending_{0};     // workers still in this run
  alignas(64) std::atomic<std::uint32_t> arrived_{0};     // members at the barrier
  alignas(64) std::atomic<std::uint32_t> generation_{0};  // one up per barrier
  alignas(64) std::atomic<bool> failed_{false};
  std::atomic<bool> stopping_{false};
};

// Hands out the items of one parallel loop: the first by rank, so that an undisturbed team never
// contends, the rest to whoever is free, so that a member whose core is taken away holds up
// nobody. reset() by one member, with a barrier before the next use.
class alignas(64) Tickets {
 public:
  void reset(int team_size) { next_.store(team_size, std::memory_order_relaxed); }
  int take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int> next_{0};
};

}  // namespace tidemill
