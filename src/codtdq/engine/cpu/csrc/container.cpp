#include "container.h"

#include <algorithm>
#include <cstring>

#include "source.h"

namespace cod {
namespace {

constexpr size_t kMostHeader = 16 << 20, kMostKeys = 1 << 16, kMostAxes = 8;
constexpr int64_t kMostNumber = (int64_t)1 << 46;

int64_t bytes_of(const std::string &dtype) {
  static const std::map<std::string, int64_t> sizes = {
      {"F64", 8}, {"F32", 4}, {"I64", 8}, {"I32", 4}, {"U16", 2}, {"I8", 1}, {"U8", 1}};
  const auto found = sizes.find(dtype);
  if (found == sizes.end())
    throw Refusal("a tensor of type " + dtype.substr(0, 16) +
                  "; accepted: F64, F32, I64, I32, U16, I8, U8");
  return found->second;
}

// The few forms of JSON that a header has: objects, arrays of whole numbers, strings.
class Header {
 public:
  Header(const char *text, size_t bytes) : begin_(text), at_(text), end_(text + bytes) {}

  bool next(char wanted) {  // takes the character if it comes next
    space();
    if (at_ == end_ || *at_ != wanted) return false;
    at_++;
    return true;
  }
  void expect(char wanted) {
    if (!next(wanted)) fail();
  }
  bool at_end() {
    space();
    return at_ == end_;
  }
  size_t mark() {  // where the next value begins
    space();
    return position();
  }
  size_t position() const { return (size_t)(at_ - begin_); }

  std::string string() {
    expect('"');
    std::string found;
    while (at_ < end_ && *at_ != '"') {
      unsigned char c = (unsigned char)*at_++;
      if (c < 0x20) fail();
      if (c == '\\') {
        if (at_ == end_) fail();
        const char escape = *at_++;
        const char *pairs = "\"\"\\\\//b\bf\fn\nr\rt\t";
        const char *place = nullptr;
        for (const char *p = pairs; *p; p += 2)
          if (*p == escape) place = p;
        if (!place) fail();  // \u is never needed: texts are UTF-8
        c = (unsigned char)place[1];
      }
      found += (char)c;
    }
    expect('"');
    return found;
  }

  int64_t number() {
    space();
    const char *first = at_;
    int64_t found = 0;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') {
      found = found * 10 + (*at_++ - '0');
      if (found > kMostNumber) fail();
    }
    if (at_ == first || (*first == '0' && at_ - first > 1)) fail();
    return found;
  }

  std::vector<int64_t> numbers() {
    std::vector<int64_t> found;
    expect('[');
    if (next(']')) return found;
    do {
      found.push_back(number());
      if (found.size() > kMostAxes) fail();
    } while (next(','));
    expect(']');
    return found;
  }

  // Calls value(key) for each member of an object; no key may come twice.
  template <typename F>
  void object(const F &value) {
    std::vector<std::string> seen;
    expect('{');
    if (next('}')) return;
    do {
      seen.push_back(string());
      if (seen.size() > kMostKeys) fail();
      expect(':');
      value(seen.back());
    } while (next(','));
    expect('}');
    std::sort(seen.begin(), seen.end());
    if (std::adjacent_find(seen.begin(), seen.end()) != seen.end()) fail();
  }

  [[noreturn]] void fail() const {
    throw Refusal("its header is no header of tensors (at byte " + std::to_string(8 + position()) +
                  "); the file is damaged or of another kind");
  }

 private:
  void space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) at_++;
  }
  const char *begin_, *at_, *end_;
};

}  // namespace

Container::Container(Source &source, const std::string &pieces) {
  const size_t bytes = source.bytes();
  uint64_t length = 0;
  const uint8_t *data = bytes >= 8 ? source.head(8) : nullptr;
  for (int i = 0; i < 8 && data; i++) length |= (uint64_t)data[i] << (8 * i);
  if (!data || length > kMostHeader || length > bytes - 8)
    throw Refusal("it is not a program file, or it is cut off (" + std::to_string(bytes) +
                  " bytes)");
  const auto begin = 8 + (size_t)length;
  Header in(reinterpret_cast<const char *>(source.head(begin)) + 8, (size_t)length);
  const auto room = (int64_t)(bytes - begin);
  std::vector<std::pair<int64_t, int64_t>> ranges;
  in.object([&](const std::string &name) {
    if (name == "__metadata__") {
      in.object([&](const std::string &key) {
        const size_t at = 8 + in.mark() + 1;  // behind the quotation mark
        metadata[key] = in.string();
        value_at[key] = at;
      });
      return;
    }
    StoredTensor one;
    std::vector<int64_t> range;
    in.object([&](const std::string &key) {
      if (key == "dtype")
        one.dtype = in.string();
      else if (key == "shape")
        one.shape = in.numbers();
      else if (key == "data_offsets")
        range = in.numbers();
      else
        in.fail();
    });
    if (range.size() != 2 || range[0] > range[1] || range[1] > room)
      throw Refusal("tensor " + name.substr(0, 64) + " lies outside of the file, which is cut off");
    int64_t count = bytes_of(one.dtype);
    for (int64_t n : one.shape) {
      if (n && count > kMostNumber / n) in.fail();
      count *= n;
    }
    if (count != range[1] - range[0])
      throw Refusal("tensor " + name.substr(0, 64) + " has another size than its shape");
    one.at = begin + (size_t)range[0], one.bytes = count;
    ranges.emplace_back(range[0], range[1]);
    tensors[name] = one;
  });
  if (!in.at_end()) in.fail();
  std::sort(ranges.begin(), ranges.end());
  int64_t at = 0;
  for (const auto &range : ranges) {
    if (range.first != at) throw Refusal("its tensors overlap or leave gaps");
    at = range.second;
  }
  if (at != room)
    throw Refusal("it has " + std::to_string(room) + " bytes of tensors; its header tells of " +
                  std::to_string(at));
  const auto last = tensors.find(pieces);
  const bool cut = last != tensors.end() && last->second.at + (size_t)last->second.bytes == bytes;
  head_bytes = cut ? last->second.at : bytes;
  head = source.head(head_bytes);
  for (auto &[name, one] : tensors)
    one.data = one.at + (size_t)one.bytes <= head_bytes ? head + one.at : nullptr;
}

}  // namespace cod
