// Memory on cache lines of its own.
#pragma once
#include <cstdint>
#include <cstdlib>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace cod {

// At least `size` bytes for std::free, or NULL. Much memory comes in large pages where the system
// has them: rows of tokens lie pages apart, and there are few entries for small ones.
inline void *aligned_memory(int64_t size) {
  constexpr size_t kLine = 128, kLarge = (size_t)1 << 21;
  if (size > (int64_t)(PTRDIFF_MAX / 2)) return nullptr;
  const size_t least = (size_t)(size > 0 ? size : 1);
  const size_t unit = least < 2 * kLarge ? kLine : kLarge;
  const size_t bytes = (least + unit - 1) / unit * unit;
  void *data = std::aligned_alloc(unit, bytes);
#ifdef MADV_HUGEPAGE
  if (data && unit == kLarge) madvise(data, bytes, MADV_HUGEPAGE);  // a wish: it may be refused
#endif
  return data;
}

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
  kept.data = static_cast<float *>(aligned_memory(count * (int64_t)sizeof(float)));
  kept.count = kept.data ? count : 0;
  return kept.data;
}

}  // namespace cod
