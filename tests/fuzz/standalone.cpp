// Runs a target of libFuzzer without libFuzzer: inputs by their number, which repeats one. Files on
// the command line are changed in some bytes; without any, inputs are random bytes.
//   target --first 0 --count 1000000 [FILE...]
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "time_limit.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)(void));

namespace {

using Data = std::vector<uint8_t>;
int64_t number = 0;

void tell() { std::fprintf(stderr, "input %lld\n", (long long)number); }

long resident() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return used.ru_maxrss / 1024;
}

Data changed(Data data, std::mt19937_64 &draw) {
  for (uint64_t left = 1 + draw() % 8; left > 0 && !data.empty(); left--) {
    const size_t at = (size_t)(draw() % data.size());
    switch (draw() % 5) {
      case 0:
        data[at] ^= (uint8_t)(1u << draw() % 8);
        break;
      case 1:
        data[at] = (uint8_t)draw();
        break;
      case 2:
        data[at] = (uint8_t)(draw() % 2 ? 255 : 0);
        break;
      case 3:
        data[at] = data[(size_t)(draw() % data.size())];
        break;
      default:
        if (draw() % 8 == 0) data.resize(at);
    }
  }
  return data;
}

Data drawn(std::mt19937_64 &draw) {
  Data data(16 + (size_t)(draw() % 500));
  for (uint8_t &one : data) one = (uint8_t)draw();
  return data;
}

}  // namespace

int main(int count, char **words) {
  int64_t first = 0, inputs = 100000;
  std::vector<Data> corpus;
  for (int i = 1; i < count; i++) {
    const bool more = i + 1 < count;
    if (more && !std::strcmp(words[i], "--first")) {
      first = std::atoll(words[++i]);
    } else if (more && !std::strcmp(words[i], "--count")) {
      inputs = std::atoll(words[++i]);
    } else {
      std::ifstream file(words[i], std::ios::binary);
      corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  __sanitizer_set_death_callback(tell);
  std::signal(SIGABRT, [](int) { tell(); });  // of the time limit
  for (const Data &one : corpus) LLVMFuzzerTestOneInput(one.data(), one.size());
  const long valid = resident();
  fuzz::slowest() = 0;
  const double began = fuzz::processor_seconds();
  for (number = first; number < first + inputs; number++) {
    std::mt19937_64 draw((uint64_t)number);
    const Data data =
        corpus.empty() ? drawn(draw) : changed(corpus[(size_t)(draw() % corpus.size())], draw);
    LLVMFuzzerTestOneInput(data.data(), data.size());
  }
  std::printf(
      "{\"first\": %lld, \"inputs\": %lld, \"crashes\": 0, \"hangs\": 0, \"slowest_seconds\": "
      "%.3f, "
      "\"valid_mib\": %ld, \"most_mib\": %ld, \"processor_seconds\": %.0f}\n",
      (long long)first, (long long)inputs, fuzz::slowest(), valid, resident(),
      fuzz::processor_seconds() - began);
  return 0;
}
