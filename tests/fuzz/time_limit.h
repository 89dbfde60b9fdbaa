// What one input may take, in processor time: a busy machine slows no input down by it.
#pragma once

#include <sys/resource.h>
#include <sys/time.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace fuzz {

constexpr int kSlowest = 5;  // seconds

inline double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

inline double &slowest() {
  static double seconds = 0;
  return seconds;
}

// Aborts the process when it has run for too long, which libFuzzer reports with the input.
class TimeLimit {
 public:
  TimeLimit() : began_(processor_seconds()) {
    static const bool prepared = prepare();
    (void)prepared;
    set(kSlowest);
  }
  ~TimeLimit() {
    set(0);
    slowest() = std::max(slowest(), processor_seconds() - began_);
  }
  TimeLimit(const TimeLimit &) = delete;
  TimeLimit &operator=(const TimeLimit &) = delete;

 private:
  static bool prepare() {
    std::signal(SIGPROF, [](int) {
      std::fprintf(stderr, "over %d s of processor time\n", kSlowest);
      std::abort();
    });
    std::atexit([] { std::fprintf(stderr, "slowest input: %.3f s\n", slowest()); });
    return true;
  }
  static void set(int seconds) {
    const itimerval limit = {{0, 0}, {seconds, 0}};
    setitimer(ITIMER_PROF, &limit, nullptr);
  }
  double began_;
};

}  // namespace fuzz
