// A target for libFuzzer: opens its input as a program file and runs what is accepted. The hash is
// made to fit first; the checks behind it are the ones that matter.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "container.h"
#include "image.h"
#include "program_file.h"
#include "sha256.h"
#include "source.h"
#include "time_limit.h"

namespace {

constexpr double kMostWork = 1 << 18;     // elements of operands
constexpr int64_t kMostBytes = 16 << 20;  // of an arena

void seal(std::vector<uint8_t> &data) {
  try {
    cod::Memory source(data.data(), data.size());
    const cod::Container file(source);
    const auto found = file.value_at.find("sha256");
    if (found == file.value_at.end() || file.metadata.at("sha256").size() != 64 ||
        data.size() - found->second < 64)
      return;
    uint8_t *at = data.data() + found->second;
    std::fill(at, at + 64, (uint8_t)'0');
    cod::Sha256 hash;
    hash.add(data.data(), data.size());
    const std::string text = hash.hex();
    std::copy(text.begin(), text.end(), at);
  } catch (const cod::Refusal &) {
  }
}

// Every other input is read piece by piece, as from a disk.
std::unique_ptr<cod::Source> source_of(std::vector<uint8_t> &data) {
  if (data.size() % 2 == 0) return std::make_unique<cod::Memory>(data.data(), data.size());
  cod::File::Handle file(fmemopen(data.data(), data.size(), "rb"), std::fclose);
  return std::make_unique<cod::File>(std::move(file), data.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  const fuzz::TimeLimit limit;
  std::vector<uint8_t> data(bytes, bytes + size);
  seal(data);
  try {
    const cod::ProgramFile file(*source_of(data), 1);
    for (const auto &one : file.programs) {
      const int64_t in = one.input_count(), out = one.output_count();
      if (one.work > kMostWork || one.arena_bytes > kMostBytes || in + out > kMostWork) continue;
      std::vector<float> input((size_t)in, 0.5f), output((size_t)out);
      const cod_buffer inputs[] = {{input.data(), in * (int64_t)sizeof(float)}};
      const cod_result outputs[] = {{output.data(), out * (int64_t)sizeof(float)}};
      cod_program_run(one.program.get(), inputs, 1, outputs, 1, 1);
      if (one.output.size() != 4) continue;
      uint8_t mask[20];
      const int64_t rows = one.output[2], columns = one.output[3];
      cod::to_mask(output.data(), rows, columns, file.postprocess, 4, 5, mask, 5);
    }
  } catch (const cod::Refusal &) {
  } catch (const std::bad_alloc &) {
  }
  return 0;
}
