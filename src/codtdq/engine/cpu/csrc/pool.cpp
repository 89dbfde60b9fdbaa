// Who shares a job: the threads of torch, if Python hands over their OpenMP runtime, else a small
// pool of our own. Two pools at once would get in each other's way: the threads of either wait
// actively for a while after each operator, on the cores that the other one needs. In the pool,
// workers wait for a job and spin briefly first. A second caller, while it is busy, runs its job
// alone: results never depend on the cut.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <unistd.h>

#include "kernels.h"

namespace cod {
namespace {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  __asm__ volatile("" ::: "memory");
#endif
}

struct Job {
  void (*run)(void *, int64_t, int64_t) = nullptr;
  void *context = nullptr;
  int64_t count = 0, chunk = 1;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
};

void work(Job &job) {
  for (;;) {
    const int64_t begin = job.next.fetch_add(job.chunk, std::memory_order_relaxed);
    if (begin >= job.count) return;
    try {
      job.run(job.context, begin, begin + job.chunk < job.count ? begin + job.chunk : job.count);
    } catch (...) {  // out of memory: no exception may leave a thread
      job.failed.store(true, std::memory_order_relaxed);
    }
  }
}

// GOMP_parallel of a GNU OpenMP runtime: every thread of a team calls the function once.
using Team = void (*)(void (*)(void *), void *, unsigned, unsigned);
std::atomic<Team> team{nullptr};
std::atomic<long> team_owner{0};  // a process that was forked must not use the team of its parent

class Pool {
 public:
  // Whether the job was taken; false if another caller has the pool.
  bool run(Job &job, int helpers) {
    std::unique_lock<std::mutex> own(busy_, std::try_to_lock);
    if (!own.owns_lock()) return false;
    helpers = grow(helpers);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      places_ = helpers;
      ticket_.fetch_add(1, std::memory_order_release);
    }
    for (int i = 0; i < helpers; i++) wake_.notify_one();  // a pool of many serves small jobs too
    work(job);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = nullptr;  // who has not begun by now is not waited for
    }
    for (int spins = 0; working_.load(std::memory_order_acquire) > 0; spins++) {
      if (spins < 20000)
        relax();
      else
        std::this_thread::yield();
    }
    return true;
  }

 private:
  // How many of the wanted helpers there are: a system may refuse to start more.
  int grow(int helpers) {
    while ((int)threads_.size() < helpers) {
      const int id = (int)threads_.size();
      const uint64_t seen = ticket_.load(std::memory_order_acquire);
      try {
        threads_.emplace_back([this, seen] { serve(seen); });
      } catch (const std::system_error &) {
        return id;
      }
      threads_.back().detach();
    }
    return helpers;
  }

  void serve(uint64_t seen) {
    for (;;) {
      for (int spins = 0; spins < 4000 && ticket_.load(std::memory_order_acquire) == seen; spins++)
        relax();
      Job *job = nullptr;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return ticket_.load(std::memory_order_acquire) != seen; });
        seen = ticket_.load(std::memory_order_acquire);
        if (job_ && places_ > 0) {
          places_--;
          working_.fetch_add(1, std::memory_order_relaxed);
          job = job_;
        }
      }
      if (job) {
        work(*job);
        working_.fetch_sub(1, std::memory_order_release);
      }
    }
  }

  std::mutex busy_, mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
  Job *job_ = nullptr;
  int places_ = 0;               // helpers that the job still takes
  std::atomic<int> working_{0};  // helpers that are at it
  std::atomic<uint64_t> ticket_{0};
};

// Never destroyed: workers may outlive main. After a fork the child gets a pool of its own.
Pool *pool() {
  static std::atomic<Pool *> one{nullptr};
  static std::atomic<long> owner{0};
  static std::mutex making;
  const long me = (long)getpid();
  if (owner.load(std::memory_order_acquire) != me) {
    std::lock_guard<std::mutex> lock(making);
    if (owner.load(std::memory_order_acquire) != me) {
      one.store(new Pool, std::memory_order_release);
      owner.store(me, std::memory_order_release);
    }
  }
  return one.load(std::memory_order_acquire);
}

}  // namespace

void parallel(int64_t count, int64_t grain, int threads, void (*run)(void *, int64_t, int64_t),
              void *context) {
  if (count <= 0) return;
  if (grain < 1) grain = 1;
  threads = std::clamp(threads, 1, kMostThreads);
  const int64_t pieces = count / grain + (count % grain != 0);
  const int helpers = (int)(pieces < threads ? pieces : threads) - 1;
  if (helpers > 0) {
    Job job;
    job.run = run;
    job.context = context;
    job.count = count;
    job.chunk = grain;
    const Team shared = team.load(std::memory_order_acquire);
    const bool own_team = shared && team_owner.load(std::memory_order_acquire) == (long)getpid();
    if (own_team)
      shared([](void *all) { work(*static_cast<Job *>(all)); }, &job, (unsigned)helpers + 1, 0);
    if (own_team || pool()->run(job, helpers)) {
      if (job.failed.load(std::memory_order_acquire)) throw std::bad_alloc();
      return;
    }
  }
  run(context, 0, count);
}

}  // namespace cod

extern "C" void cod_use_team(void *gomp_parallel) {
  cod::team_owner.store((long)getpid(), std::memory_order_release);
  cod::team.store(reinterpret_cast<cod::Team>(gomp_parallel), std::memory_order_release);
}
