// Memory on cache lines of its own.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COD_GUARDS
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define COD_GUARDS
#endif
#ifdef COD_GUARDS
#include <sanitizer/asan_interface.h>
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

// Zeros for as long as it lives. Large pages serve many buffers that lie behind one another; where
// a sanitizer looks, gaps between them are closed to everybody.
class Zeros {
 public:
#ifdef COD_GUARDS
  static constexpr int64_t kGuard = 128;
#else
  static constexpr int64_t kGuard = 0;
#endif
  Zeros() = default;
  explicit Zeros(int64_t bytes) : bytes_((size_t)bytes) {  // throws std::bad_alloc
    if (!bytes_) return;
#ifdef __linux__
    void *data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    madvise(data, bytes_, MADV_HUGEPAGE);  // a wish: it may be refused
#else
    void *data = aligned_memory(bytes);
    if (!data) throw std::bad_alloc();
    std::memset(data, 0, bytes_);
#endif
    data_ = static_cast<uint8_t *>(data);
  }
  Zeros(Zeros &&other) noexcept { *this = std::move(other); }
  Zeros &operator=(Zeros &&other) noexcept {
    std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Zeros() {
    if (!data_) return;
#ifdef COD_GUARDS
    __asan_unpoison_memory_region(data_, bytes_);
#endif
#ifdef __linux__
    munmap(data_, bytes_);
#else
    std::free(data_);
#endif
  }
  uint8_t *data() const { return data_; }
  int64_t bytes() const { return (int64_t)bytes_; }
  static void guard(const uint8_t *begin, const uint8_t *end) {
#ifdef COD_GUARDS
    __asan_poison_memory_region(begin, (size_t)(end - begin));
#else
    (void)begin, (void)end;
#endif
  }

 private:
  uint8_t *data_ = nullptr;
  size_t bytes_ = 0;
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
  kept.data = static_cast<float *>(aligned_memory(count * (int64_t)sizeof(float)));
  kept.count = kept.data ? count : 0;
  return kept.data;
}

}  // namespace cod
