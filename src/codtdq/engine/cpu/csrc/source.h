// The bytes of a file in their order, from memory or from a disk. What is read from a disk lies in
// memory of our own: nobody can change it behind its hash.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "aligned.h"
#include "container.h"

namespace cod {

class Source {
 public:
  explicit Source(size_t bytes) : bytes_(bytes) {}
  virtual ~Source() = default;
  size_t bytes() const { return bytes_; }
  // The first so many, for as long as the source lives or until more of them are asked for.
  virtual const uint8_t *head(size_t count) = 0;
  // Those that come next; they stay for one more call.
  virtual const uint8_t *next(size_t count) = 0;

 private:
  size_t bytes_;
};

class Memory : public Source {
 public:
  Memory(const uint8_t *data, size_t bytes) : Source(bytes), data_(data) {}
  const uint8_t *head(size_t count) override {
    at_ = count;
    return data_;
  }
  const uint8_t *next(size_t count) override {
    at_ += count;
    return data_ + at_ - count;
  }

 private:
  const uint8_t *data_;
  size_t at_ = 0;
};

class File : public Source {
 public:
  using Handle = std::unique_ptr<std::FILE, int (*)(std::FILE *)>;
  File(Handle file, size_t bytes) : Source(bytes), file_(std::move(file)) {}

  const uint8_t *head(size_t count) override {
    if (count > known_) {
      Zeros longer((int64_t)count);
      if (known_) std::memcpy(longer.data(), head_.data(), known_);
      read(longer.data() + known_, count - known_);
      head_ = std::move(longer), known_ = count;
    }
    return head_.data();
  }
  const uint8_t *next(size_t count) override {
    std::swap(now_, before_);
    if ((int64_t)count > now_.bytes()) now_ = Zeros((int64_t)count);
    read(now_.data(), count);
    return now_.data();
  }

 private:
  void read(uint8_t *to, size_t count) {
    if (std::fread(to, 1, count, file_.get()) != count) throw Refusal("cannot be read to its end");
  }

  Handle file_;
  Zeros head_, now_, before_;
  size_t known_ = 0;
};

}  // namespace cod
