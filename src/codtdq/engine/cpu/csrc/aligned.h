// Scratch memory on cache lines of its own.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace cod {

// Zeroed, for one call.
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

// `count` floats with any values, or NULL; each thread keeps its own for the next call.
inline float *scratch(int64_t count) {
  struct Kept {
    ~Kept() { std::free(data); }
    float *data = nullptr;
    int64_t count = 0;
  };
  static thread_local Kept kept;
  if (count <= kept.count) return kept.data;
  std::free(kept.data);
  const size_t bytes = ((size_t)count * sizeof(float) + 127) / 128 * 128;
  kept.data = static_cast<float *>(std::aligned_alloc(128, bytes));
  kept.count = kept.data ? count : 0;
  return kept.data;
}

}  // namespace cod
