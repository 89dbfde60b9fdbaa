// SHA-256 (FIPS 180-4) of bytes that come in pieces.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace cod {

class Sha256 {
 public:
  void add(const uint8_t *data, size_t bytes);
  std::string hex();  // of all that was added; nothing may follow

 private:
  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t rest_[64];
  size_t left_ = 0;     // bytes in `rest_`
  uint64_t total_ = 0;  // bytes
};

}  // namespace cod
