// Scratch memory on a cache line of its own, zeroed.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace cod {

struct Aligned {
  explicit Aligned(int64_t size) {
    const size_t bytes = ((size_t)(size > 0 ? size : 1) + 127) / 128 * 128;
    data = static_cast<uint8_t *>(std::aligned_alloc(128, bytes));
    if (data) std::memset(data, 0, bytes);
  }
  ~Aligned() { std::free(data); }
  Aligned(const Aligned &) = delete;
  uint8_t *data;
};

}  // namespace cod
