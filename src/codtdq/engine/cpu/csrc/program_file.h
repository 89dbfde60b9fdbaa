// Program files: a network as instructions and constants that know no instruction set
// (docs/runtime.md has the format). Reading checks everything that a file says before any of it is
// used; constants are packed for the set in use on the way.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aligned.h"
#include "container.h"
#include "program.h"

namespace cod {

// How constants are stored. Numbers stand in files; they are for ever.
enum Form { kRaw = 0, kPanels = 1, kCarrierWeight = 2, kPalette = 3 };

// What becomes of an image before the network, and of its output after it.
enum class Postprocess { kNone, kSigmoid, kSigmoidMinmax, kBinary };

struct ProgramFile {
  struct Constant {
    uint8_t *data = nullptr;
    int64_t bytes = 0;
    int32_t type = COD_TYPE_F32;
    bool packed = false;  // its size belongs to the instruction set
  };
  struct One {
    std::vector<int64_t> input, output;  // shapes
    int64_t arena_bytes = 0, instructions = 0;
    double work = 0;  // elements of all operands
    std::shared_ptr<void> program;
    int64_t input_count() const { return count(input); }
    int64_t output_count() const { return count(output); }
    static int64_t count(const std::vector<int64_t> &shape) {
      int64_t n = 1;
      for (int64_t side : shape) n *= side;
      return n;
    }
  };
  std::map<std::string, std::string> metadata;
  Zeros memory;  // of all constants
  std::vector<Constant> constants;
  std::vector<One> programs;
  Postprocess postprocess = Postprocess::kNone;
  float mean[3] = {0, 0, 0}, deviation[3] = {1, 1, 1};

  ProgramFile(Source &source, int threads);  // throws Refusal
};

}  // namespace cod
