// The thread team without Python: barriers, exceptions, tickets, shutting down. Exits with 1 and a
// message at the first failure; made to be run under the sanitizers too.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "team.h"

using tidemill::CpuSet;
using tidemill::Team;
using tidemill::Tickets;

namespace {

void check(bool ok, const char* what) {
  if (!ok) {
    std::fprintf(stderr, "FAILED: %s\n", what);
    std::exit(1);
  }
}

// Every member sees what every other one wrote before the barrier, again and again.
void barriers_order_memory(int size) {
  Team team(size);
  std::vector<int> written(static_cast<std::size_t>(size));
  std::atomic<int> wrong{0};
  for (int run = 0; run < 20; ++run) {
    team.run([&](int rank) {
      for (int step = 0; step < 50; ++step) {
        written[static_cast<std::size_t>(rank)] = run * 1000 + step;
        team.barrier();
        for (const int value : written) wrong += value != run * 1000 + step;
        team.barrier();
      }
    });
  }
  check(wrong == 0, "barriers order memory");
}

void every_rank_runs_once(int size) {
  Team team(size);
  std::vector<int> calls(static_cast<std::size_t>(size));
  const std::thread::id caller = std::this_thread::get_id();
  bool caller_is_first = false;
  for (int i = 0; i < 100; ++i) {
    team.run([&](int rank) {
      ++calls[static_cast<std::size_t>(rank)];
      if (rank == 0) caller_is_first = std::this_thread::get_id() == caller;
    });
  }
  for (const int n : calls) check(n == 100, "every rank runs once");
  check(caller_is_first, "rank 0 is the caller");
}

// One member throws, before, between or after barriers; the others are released, the caller gets
// the exception, and the team works on.
void exceptions_reach_the_caller(int size) {
  Team team(size);
  for (int culprit = 0; culprit < size; ++culprit) {
    for (int when = 0; when < 4; ++when) {
      std::string caught;
      try {
        team.run([&](int rank) {
          for (int step = 0; step < 3; ++step) {
            if (rank == culprit && step == when) throw std::runtime_error("culprit");
            team.barrier();
          }
          if (rank == culprit && when == 3) throw std::runtime_error("culprit");
        });
      } catch (const std::runtime_error& error) {
        caught = error.what();
      }
      check(caught == "culprit", "the exception reaches the caller");
      std::atomic<int> sum{0};
      team.run([&](int rank) {
        team.barrier();
        sum += rank + 1;
        team.barrier();
      });
      check(sum == size * (size + 1) / 2, "the team works on after an exception");
    }
  }
}

void tickets_give_each_item_once(int size) {
  Team team(size);
  Tickets tickets;
  for (int items = 0; items < 40; ++items) {
    std::vector<std::atomic<int>> taken(40);
    tickets.reset(size);
    team.run([&](int rank) {
      for (int item = rank; item < items; item = tickets.take()) {
        ++taken[static_cast<std::size_t>(item)];
      }
    });
    for (int item = 0; item < 40; ++item) {
      check(taken[static_cast<std::size_t>(item)] == (item < items ? 1 : 0), "each item once");
    }
  }
}

void callers_take_turns() {
  Team team(2);
  int counter = 0;  // guarded by nothing but the team's own order
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      for (int n = 0; n < 50; ++n) {
        team.run([&](int rank) {
          if (rank == 1) ++counter;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  check(counter == 150, "callers take turns");
}

void parked_members_wake_up() {
  Team team(3);
  for (int i = 0; i < 3; ++i) {
    ::usleep(20000);  // longer than any spin
    std::atomic<int> calls{0};
    team.run([&](int rank) {
      if (rank == 1) ::usleep(20000);
      team.barrier();
      ++calls;
    });
    check(calls == 3, "parked members wake up");
  }
}

void sizes_are_checked() {
  for (const int size : {0, -1, Team::kMaxSize + 1}) {
    bool refused = false;
    try {
      Team team(size);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    check(refused, "sizes are checked");
  }
}

void a_forked_child_is_refused() {
  Team team(2);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      team.run([](int) {});
    } catch (const std::logic_error&) {
      ::_exit(0);
    }
    ::_exit(1);
  }
  int status = 0;
  check(::waitpid(child, &status, 0) == child && status == 0, "a forked child is refused");
}

}  // namespace

#if defined(__linux__)

CpuSet allowed() {
  CpuSet cpus;
  check(sched_getaffinity(0, sizeof cpus, &cpus) == 0, "affinity is told");
  return cpus;
}

// In a team of as many members as there are cores; the caller only while it is one of them.
void members_have_cores_of_their_own() {
  const CpuSet before = allowed();
  for (int size = 1; size <= 2 * CPU_COUNT(&before) && size <= 64; ++size) {
    const std::vector<CpuSet> cores = tidemill::cores_of_team(size);
    std::vector<CpuSet> found(static_cast<std::size_t>(size));
    Team team(size);
    for (int run = 0; run < 3; ++run) {
      team.run([&](int rank) { found[static_cast<std::size_t>(rank)] = allowed(); });
    }
    CpuSet all;
    CPU_ZERO(&all);
    int count = 0;
    for (std::size_t rank = 0; rank < found.size(); ++rank) {
      const CpuSet& wanted = cores.empty() ? before : cores[rank];
      check(CPU_EQUAL(&found[rank], &wanted), "a member has its own core, or all");
      CPU_OR(&all, &all, &found[rank]);
      count += CPU_COUNT(&found[rank]);
    }
    if (!cores.empty()) {
      check(size > 1 && CPU_EQUAL(&all, &before) && count == CPU_COUNT(&before),
            "cores are shared out whole");
    }
    const CpuSet after = allowed();
    check(CPU_EQUAL(&after, &before), "the caller is where it was");
  }
}

// As `taskset` and control groups do it; also after the team was made.
void a_caller_that_may_use_less_is_left_there() {
  const CpuSet before = allowed();
  Team early(2);
  CpuSet one;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &before)) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    check(sched_setaffinity(0, sizeof one, &one) == 0, "affinity is set");
    check(tidemill::cores_of_team(2).empty(), "one core is not shared out");
    Team late(2);
    for (Team* team : {&early, &late}) {
      CpuSet found;
      team->run([&](int rank) {
        if (rank == 0) found = allowed();
      });
      check(CPU_EQUAL(&found, &one), "a caller keeps what it may use");
    }
    check(sched_setaffinity(0, sizeof before, &before) == 0, "affinity is set");
  }
}

#endif

int main() {
  for (const int size : {1, 2, 3, 8}) {
    every_rank_runs_once(size);
    barriers_order_memory(size);
    exceptions_reach_the_caller(size);
    tickets_give_each_item_once(size);
  }
#if defined(__linux__)
  members_have_cores_of_their_own();
  a_caller_that_may_use_less_is_left_there();
#endif
  callers_take_turns();
  parked_members_wake_up();
  sizes_are_checked();
  a_forked_child_is_refused();
  std::puts("thread team: ok");
  return 0;
}
