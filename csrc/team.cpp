#include "team.h"

#include <csignal>
#include <stdexcept>
#include <string>
#include <utility>

#include <pthread.h>
#include <unistd.h>

namespace tidemill {
namespace {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Roughly 2 to 5 milliseconds of spinning: longer than what lies between two steps, and about as
// long as a slice of the operating system's. A member that parks earlier gives its core to whatever
// else wants to run, and waits for the end of that one's slice before it is back, as often as it
// parks: one busy process beside a model then took two thirds of its speed.
constexpr int kSpins = 100000;

// Of a team that has more members than there are cores for them, or that works between the steps of
// another: who waits is in another's way.
constexpr int kSpinsInTheWay = 1000;

// Returns when `value` differs from `old`.
void wait_change(const std::atomic<std::uint32_t>& value, std::uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

// hardware_concurrency() counts the cores that this process may use; 0 if that is not known.
Team::Team(int size, bool seldom)
    : size_(size),
      spins_(!seldom && static_cast<unsigned>(size) <= std::thread::hardware_concurrency()
                 ? kSpins
                 : kSpinsInTheWay),
      owner_(::getpid()),
      cores_(cores_of_team(size)) {
  if (size < 1 || size > kMaxSize) {
    throw std::invalid_argument("thread team of " + std::to_string(size) + " (1 to " +
                                std::to_string(kMaxSize) + ")");
  }
  // Workers inherit the mask: signals go to the threads of the program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    workers_.reserve(static_cast<std::size_t>(size - 1));
    for (int rank = 1; rank < size; ++rank) workers_.emplace_back([this, rank] { work(rank); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    stop();
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Team::~Team() {
  if (::getpid() == owner_) {
    stop();
  } else {
    // The threads exist in the parent only: there is nothing to join here.
    for (std::thread& worker : workers_) worker.detach();
  }
}

void Team::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void Team::work(int rank) {
#if defined(__linux__)
  pthread_setname_np(pthread_self(), ("tidemill-" + std::to_string(rank)).c_str());
#endif
  if (!cores_.empty()) place(cores_[static_cast<std::size_t>(rank)]);
  // Counting from the constructor's value keeps a worker that starts late from missing a run.
  for (std::uint32_t seen = 0;; ++seen) {
    wait_change(epoch_, seen, spins_);
    if (stopping_.load(std::memory_order_relaxed)) return;
    perform(rank);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

void Team::perform(int rank) noexcept {
  try {
    job_(context_, rank);
  } catch (const Aborted&) {
    // Another member's exception is the one to report.
  } catch (...) {
    fail(std::current_exception());
  }
}

void Team::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::move(error);
  }
  failed_.store(true, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
}

void Team::run_erased(Erased job, void* context) {
  if (::getpid() != owner_) {
    throw std::logic_error(
        "this model was loaded before fork(): its threads do not exist in the child process; "
        "load the model in the process that uses it");
  }
  const std::lock_guard lock(turn_);
  const Placed placed(cores_.empty() ? nullptr : cores_.data());
  job_ = job;
  context_ = context;
  if (size_ > 1) {
    pending_.store(static_cast<std::uint32_t>(size_ - 1), std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  perform(0);
  for (std::uint32_t left; (left = pending_.load(std::memory_order_acquire)) != 0;) {
    wait_change(pending_, left, spins_);
  }
  if (failed_.load(std::memory_order_relaxed)) {
    arrived_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void Team::barrier() {
  if (size_ == 1) return;
  const std::uint32_t generation = generation_.load(std::memory_order_acquire);
  // After the load: a failure that raised the generation before it is seen here.
  if (failed_.load(std::memory_order_acquire)) throw Aborted{};
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(size_)) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  } else {
    wait_change(generation_, generation, spins_);
  }
  if (failed_.load(std::memory_order_acquire)) throw Aborted{};
}

}  // namespace tidemill
