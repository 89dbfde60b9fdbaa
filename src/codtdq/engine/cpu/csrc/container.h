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
  const uint8_t *data;
  int64_t bytes;
};

struct Container {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::map<std::string, size_t> value_at;  // where the text of a metadata value begins

  Container(const uint8_t *data, size_t bytes);  // keeps pointers into the data; throws Refusal
};

}  // namespace cod
