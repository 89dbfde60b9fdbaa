// The safetensors container, read strictly: a length, a JSON header, then the tensors without gaps.
#pragma once
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace cod {

// Why a file is refused, in one line.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct StoredTensor {
  std::string dtype;  // F32, F64, I8, U8, I32, ...
  std::vector<int64_t> shape;
  const uint8_t *data;  // NULL: of a last tensor that comes piece by piece
  size_t at;            // where it begins in the file
  int64_t bytes;
};

class Source;

struct Container {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::map<std::string, size_t> value_at;  // where the text of a metadata value begins

  const uint8_t *head = nullptr;  // the file up to `head_bytes`
  size_t head_bytes = 0;

  // Reads the head; throws Refusal. pieces: a tensor that is left for `Source::next`, if it is the
  // last one; else the head is all of the file.
  explicit Container(Source &source, const std::string &pieces = "");
};

}  // namespace cod
