#include "program_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <new>

#include "kernels.h"
#include "sha256.h"
#include "source.h"

namespace cod {
namespace {

constexpr int64_t kMostConstants = 1 << 20, kMostPrograms = 256, kMostRecords = 1 << 18;
constexpr int64_t kMostRun = std::min((int64_t)1 << 33, kMostBytes);  // arena, input and output
// Constants in memory beside their file: panels are padded, palettes repeat. More is an attack.
constexpr int64_t kMostTimes = 64, kSpare = 8 << 20;
constexpr int64_t kPiece = 1 << 20;  // bytes, at least, that are read at once
constexpr int64_t kMostSide = std::min((int64_t)1 << 40, kMostBytes);

[[noreturn]] void damaged(const std::string &what) {
  throw Refusal(what + "; the file is damaged");
}

// Numbers of a stream: seven bits to a byte, the lowest first, signs in the lowest bit.
class Stream {
 public:
  Stream(const StoredTensor &from, const char *name) : name_(name) {
    if (from.dtype != "U8") damaged(std::string(name) + " is no stream of bytes");
    at_ = from.data, end_ = from.data + from.bytes;
  }
  int64_t next(int64_t least, int64_t most) {
    uint64_t found = 0;
    for (int shift = 0;; shift += 7) {
      if (at_ == end_ || shift > 63) damaged(name_ + " ends in the middle of a number");
      found |= (uint64_t)(*at_ & 127) << shift;
      if (!(*at_++ & 128)) break;
    }
    const int64_t value = (int64_t)(found >> 1) ^ -(int64_t)(found & 1);
    if (value < least || value > most)
      damaged(name_ + " has " + std::to_string(value) + " where " + std::to_string(least) + " to " +
              std::to_string(most) + " is accepted");
    return value;
  }
  int64_t left() const { return end_ - at_; }
  void end() const {
    if (at_ != end_) damaged(name_ + " goes on after its end");
  }

 private:
  std::string name_;
  const uint8_t *at_, *end_;
};

// The hash of a file: that of its bytes with zeros in its own place.
class Seal {
 public:
  explicit Seal(const Container &file) {
    const auto found = file.metadata.find("sha256");
    if (found == file.metadata.end() || found->second.size() != 64)
      throw Refusal("it has no sha256; write it again with codtdq export");
    wanted_ = found->second;
    const size_t at = file.value_at.at("sha256"), bytes = file.head_bytes;
    if (at > bytes || bytes - at < 64 || std::memcmp(file.head + at, wanted_.data(), 64) != 0)
      damaged("its sha256 is written in another form");
    const std::string zeros(64, '0');
    hash_.add(file.head, at);
    hash_.add(reinterpret_cast<const uint8_t *>(zeros.data()), zeros.size());
    hash_.add(file.head + at + 64, bytes - at - 64);
  }
  void add(const uint8_t *data, int64_t bytes) { hash_.add(data, (size_t)bytes); }
  void check() {
    if (hash_.hex() != wanted_) damaged("its content does not fit its sha256");
  }

 private:
  Sha256 hash_;
  std::string wanted_;
};

// Runs both, side by side where there are threads for it; throws what the first one threw, or else
// the second one.
template <typename First, typename Second>
void both(int threads, const First &first, const Second &second) {
  std::exception_ptr failed[2];
  parallel_for(2, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) try {
        i == 0 ? first() : second();
      } catch (...) {
        failed[i] = std::current_exception();
      }
  });
  for (const std::exception_ptr &one : failed)
    if (one) std::rethrow_exception(one);
}

// The values of all constants of one type, taken one after another. NULL is taken of those that
// come in pieces.
class Values {
 public:
  Values(const Container &file, const char *name, const char *dtype, int64_t size) : name_(name) {
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end()) return;
    if (found->second.dtype != dtype) damaged(name_ + " is of type " + found->second.dtype);
    data_ = found->second.data, left_ = found->second.bytes / size, size_ = size;
  }
  const uint8_t *take(int64_t count) {
    if (count > left_) damaged(name_ + " has fewer values than its constants");
    const uint8_t *found = data_;
    if (data_) data_ += count * size_;
    left_ -= count;
    return found;
  }
  void end() const {
    if (left_) damaged(name_ + " has values that no constant takes");
  }

 private:
  std::string name_;
  const uint8_t *data_ = nullptr;
  int64_t left_ = 0, size_ = 1;
};

class Constants {
 public:
  Constants(const Container &file, Source &source, Seal &seal, int threads)
      : file_(file),
        source_(source),
        seal_(seal),
        f32_(file, "f32", "F32", 4),
        i8_(file, "i8", "I8", 1),
        u8_(file, "u8", "U8", 1),
        u16_(file, "u16", "U16", 2),
        i32_(file, "i32", "I32", 4),
        i64_(file, "i64", "I64", 8),
        threads_(threads),
        left_(std::min((int64_t)source.bytes(), kMostBytes / kMostTimes) * kMostTimes + kSpare) {}

  // All records are checked, and have their values, before there is memory for any of them: a file
  // cannot ask for more than it has.
  std::vector<ProgramFile::Constant> read(Stream &in, Zeros &memory) {
    for (int64_t left = in.next(0, kMostConstants); left > 0; left--) switch (in.next(0, 3)) {
        case kRaw:
          raw(in);
          break;
        case kPanels:
          panels(in);
          break;
        case kCarrierWeight:
          carrier_weight(in);
          break;
        default:
          palette(in);
      }
    in.end();
    for (const Values *one : {&f32_, &i8_, &u8_, &u16_, &i32_, &i64_}) one->end();
    memory = Zeros(total_);
    uint8_t *at = memory.data();
    for (ProgramFile::Constant &one : made_) {
      one.data = at;
      at += taken(one.bytes);
      memory.guard(one.data + whole(one.bytes), at);
    }
    fill();
    return std::move(made_);
  }

 private:
  // What writes the values of a record, given its bytes of `u8`.
  struct Fill {
    int64_t bytes;
    std::function<void(const uint8_t *)> run;
  };

  // Nearly all of a file are bytes of `u8`, in the order of the records: while some are packed, the
  // next ones are read and hashed.
  void fill() {
    const auto found = file_.tensors.find("u8");
    const bool pieces = found != file_.tensors.end() && !found->second.data;
    const uint8_t *at = found != file_.tensors.end() ? found->second.data : nullptr;
    const auto take = [&](int64_t bytes) {
      const uint8_t *taken = pieces && bytes ? source_.next((size_t)bytes) : at;
      if (pieces && bytes)
        seal_.add(taken, bytes);
      else if (at)
        at += bytes;
      return taken;
    };
    int64_t bytes, later_bytes;  // of a piece
    size_t begin = 0, end = piece(0, bytes);
    for (const uint8_t *now = take(bytes), *later; begin < fills_.size(); now = later) {
      const size_t later_end = piece(end, later_bytes);
      both(
          threads_, [&] { later = take(later_bytes); },
          [&] {
            for (; begin < end; begin++) {
              fills_[begin].run(now);
              if (now) now += fills_[begin].bytes;
            }
          });
      end = later_end;
    }
  }
  // The end of a piece, and how long it is.
  size_t piece(size_t begin, int64_t &bytes) const {
    for (bytes = 0; begin < fills_.size() && bytes < kPiece; begin++) bytes += fills_[begin].bytes;
    return begin;
  }

  static int64_t whole(int64_t bytes) { return (std::max<int64_t>(bytes, 1) + 127) / 128 * 128; }
  static int64_t taken(int64_t bytes) { return whole(bytes) + Zeros::kGuard; }

  // The number of a constant for which there will be zeros.
  size_t room(int64_t bytes, int32_t type, bool packed) {
    if (bytes > left_ || bytes > kMostBytes) damaged("constants larger than any file of its size");
    left_ -= bytes, total_ += taken(bytes);
    made_.push_back({nullptr, bytes, type, packed});
    return made_.size() - 1;
  }
  template <typename T>
  T *at(size_t number) const {
    return reinterpret_cast<T *>(made_[number].data);
  }

  void raw(Stream &in) {
    const auto type = (int32_t)in.next(0, COD_TYPE_I64);
    const int64_t count = in.next(1, kMostSide);
    Values *all[] = {&f32_, &i8_, &u8_, &i32_, &i64_};
    const uint8_t *from = all[type]->take(count);
    const size_t to = room(count * size_of(type), type, false);
    const bool bytes = type == COD_TYPE_U8;
    fills_.push_back({bytes ? count : 0, [=](const uint8_t *given) {
                        std::memcpy(at<uint8_t>(to), bytes ? given : from, (size_t)made_[to].bytes);
                      }});
  }

  void panels(Stream &in) {
    const int64_t depth = in.next(1, 1 << 24), outputs = in.next(1, 1 << 24);
    const int64_t count = take_count(depth, outputs), packed = cod_float_packed(depth, outputs);
    const uint8_t *from = f32_.take(count);
    const size_t to = room(packed * 4, COD_TYPE_F32, true);
    fills_.push_back({0, [=](const uint8_t *) {
                        const std::vector<float> values = floats(from, count);
                        if (cod_float_pack(values.data(), count, depth, outputs, outputs, 1,
                                           at<float>(to), packed) != COD_OK)
                          damaged("weights that the engine does not pack");
                      }});
  }

  void carrier_weight(Stream &in) {
    const int64_t outputs = in.next(1, 1 << 24), taps = in.next(1, 1 << 20);
    const int64_t inputs = in.next(1, 1 << 24), bits = in.next(4, 8), group = in.next(0, 1 << 24);
    const int64_t multiplied = in.next(0, 1);
    cod_carrier_weight w;
    const int64_t count = take_count(take_count(outputs, taps), inputs);
    if (cod_carrier_weight_describe(outputs, taps, inputs, (int32_t)bits, (int32_t)group,
                                    (int32_t)multiplied, &w) != COD_OK)
      damaged("a weight that no product takes");
    const int64_t pairs = bits == 8 ? 0 : (count + 1) / 2;
    const uint8_t *wide = bits == 8 ? i8_.take(count) : nullptr;
    u8_.take(pairs);
    const int64_t groups = w.group ? (inputs + w.group - 1) / w.group : 1;
    const int64_t multipliers = multiplied ? take_count(take_count(outputs, taps), groups) : 0;
    const auto *multiplier =
        multiplied ? reinterpret_cast<const int8_t *>(i8_.take(multipliers)) : nullptr;
    const uint8_t *factors = f32_.take(outputs);
    const size_t packed = room(w.packed_bytes, COD_TYPE_U8, true);
    const size_t multiplied_at = multiplied ? room(w.multiplier_bytes, COD_TYPE_I8, true) : 0;
    const size_t factored = room(w.factor_count * 4, COD_TYPE_F32, true);
    fills_.push_back(
        {pairs, [=](const uint8_t *given) mutable {
           w.packed = at<uint8_t>(packed), w.factor = at<float>(factored);
           if (multiplied) w.multiplier = at<int8_t>(multiplied_at);
           const std::vector<float> factor = floats(factors, outputs);
           int32_t result;
           if (bits == 4 &&
               (taps * inputs % 2 == 0 || outputs == 1)) {  // outputs begin with a byte
             result = cod_carrier_weight_pack_nibbles(given, pairs, multiplier, multipliers,
                                                      factor.data(), outputs, &w, threads_);
           } else {
             std::vector<int8_t> codes((size_t)count);
             if (bits == 8)
               std::memcpy(codes.data(), wide, (size_t)count);
             else
               expand(given, codes);
             result = cod_carrier_weight_pack(codes.data(), count, multiplier, multipliers,
                                              factor.data(), outputs, &w, threads_);
           }
           if (result == COD_NO_MEMORY) throw std::bad_alloc();
           if (result != COD_OK) damaged("weights or multipliers out of range");
         }});
  }

  // value[o, g, i] = table[g, code[o, i]]: what repeats is stored once
  void palette(Stream &in) {
    const int64_t outer = in.next(1, kMostSide), groups = in.next(1, kMostSide);
    const int64_t inner = in.next(1, kMostSide), entries = in.next(1, 1 << 16);
    const int64_t count = take_count(take_count(outer, inner), groups);
    const bool wide = entries > 256;
    const uint8_t *stored = wide ? u16_.take(outer * inner) : u8_.take(outer * inner);
    const uint8_t *values = f32_.take(take_count(groups, entries));
    const size_t made = room(take_count(count, 4), COD_TYPE_F32, false);
    fills_.push_back({wide ? 0 : outer * inner, [=](const uint8_t *given) {
                        const uint8_t *codes = wide ? stored : given;
                        uint8_t *to = at<uint8_t>(made);
                        for (int64_t o = 0; o < outer; o++)
                          for (int64_t g = 0; g < groups; g++)
                            for (int64_t i = o * inner; i < (o + 1) * inner; i++, to += 4) {
                              const int64_t code =
                                  wide ? codes[2 * i] | codes[2 * i + 1] << 8 : codes[i];
                              if (code >= entries)
                                damaged("a palette without the colour that is asked for");
                              std::memcpy(to, values + 4 * (g * entries + code), 4);
                            }
                      }});
  }

  static int64_t take_count(int64_t a, int64_t b) {
    if (a > kMostSide / b) damaged("a weight beyond every size");
    return a * b;
  }
  static std::vector<float> floats(const uint8_t *from, int64_t count) {  // in a file, not aligned
    std::vector<float> values((size_t)count);
    std::memcpy(values.data(), from, values.size() * sizeof(float));
    return values;
  }
  static void expand(const uint8_t *nibbles, std::vector<int8_t> &codes) {
    const size_t pairs = codes.size() / 2;
    for (size_t i = 0; i < pairs; i++) {
      codes[2 * i] = (int8_t)((int8_t)(nibbles[i] << 4) >> 4);
      codes[2 * i + 1] = (int8_t)((int8_t)nibbles[i] >> 4);
    }
    if (codes.size() % 2) codes.back() = (int8_t)((int8_t)(nibbles[pairs] << 4) >> 4);
  }

  const Container &file_;
  Source &source_;
  Seal &seal_;
  Values f32_, i8_, u8_, u16_, i32_, i64_;
  int threads_;
  int64_t left_;  // bytes that constants may still take
  int64_t total_ = 0;
  std::vector<ProgramFile::Constant> made_;
  std::vector<Fill> fills_;
};

std::vector<int64_t> shape(Stream &in, int64_t *bytes) {
  std::vector<int64_t> found;
  *bytes = 4;
  for (int64_t left = in.next(1, COD_MAX_AXES); left > 0; left--) {
    found.push_back(in.next(1, kMostSide));
    if (found.back() > kMostSide / *bytes) damaged("an input or output beyond every size");
    *bytes *= found.back();
  }
  return found;
}

cod_operand operand(Stream &in, const std::vector<ProgramFile::Constant> &constants) {
  cod_operand x{};
  x.space = (int32_t)in.next(COD_SPACE_NONE, COD_SPACE_OUTPUT);
  if (x.space == COD_SPACE_NONE) return x;
  x.buffer = (int32_t)in.next(0, kMostConstants);
  x.type = (int32_t)in.next(0, COD_TYPE_I64);
  x.ndim = (int32_t)in.next(0, COD_MAX_AXES);
  x.offset = in.next(0, kMostSide);
  for (int32_t d = 0; d < x.ndim; d++)
    x.shape[d] = in.next(0, kMostSide), x.stride[d] = in.next(0, kMostSide);
  if (x.space != COD_SPACE_CONSTANT || (size_t)x.buffer >= constants.size()) return x;
  const auto &one = constants[(size_t)x.buffer];
  if (!one.packed) return x;
  if (x.ndim != 1 || x.shape[0] || x.stride[0] != 1 || x.offset || x.type != one.type)
    damaged("a packed weight that is read in part");
  x.shape[0] = one.bytes / size_of(one.type);
  return x;
}

ProgramFile::One program(const Container &file, int64_t number,
                         const std::vector<ProgramFile::Constant> &constants) {
  const std::string name = "code." + std::to_string(number);
  const auto tensor = [&](const std::string &wanted) -> const StoredTensor & {
    const auto found = file.tensors.find(wanted);
    if (found == file.tensors.end()) damaged("it has no " + wanted);
    return found->second;
  };
  Stream in(tensor(name), name.c_str());
  ProgramFile::One made;
  cod_buffer input{}, output{};
  made.input = shape(in, &input.bytes), made.output = shape(in, &output.bytes);
  made.arena_bytes = in.next(0, kMostRun);
  if (input.bytes > kMostRun || output.bytes > kMostRun ||
      made.arena_bytes + input.bytes + output.bytes > kMostRun)
    damaged("a run of " + name + " takes more than " + std::to_string(kMostRun) + " bytes");
  const int64_t counts[] = {in.next(0, kMostRecords), in.next(0, kMostRecords),
                            in.next(0, kMostRecords), in.next(0, kMostRecords)};
  made.instructions = counts[0];
  for (int64_t count : {counts[0], counts[1], counts[2]})
    if (count > in.left()) damaged(name + " ends too early");
  std::vector<cod_instruction> instructions((size_t)counts[0]);
  int64_t at[3] = {0, 0, 0};
  for (auto &one : instructions) {
    one.kind = (int32_t)in.next(1, 1 << 20);
    one.operand_count = (int32_t)in.next(0, counts[1] - at[0]);
    one.int_count = (int32_t)in.next(0, counts[2] - at[1]);
    one.float_count = (int32_t)in.next(0, counts[3] - at[2]);
    one.first_operand = at[0], one.first_int = at[1], one.first_float = at[2];
    at[0] += one.operand_count, at[1] += one.int_count, at[2] += one.float_count;
  }
  if (at[0] != counts[1] || at[1] != counts[2] || at[2] != counts[3])
    damaged(name + " has operands that belong to no instruction");
  std::vector<cod_operand> operands;
  operands.reserve((size_t)counts[1]);
  for (int64_t i = 0; i < counts[1]; i++) {
    operands.push_back(operand(in, constants));
    double elements = 1;
    for (int32_t d = 0; d < operands.back().ndim; d++) elements *= (double)operands.back().shape[d];
    made.work += elements;
  }
  std::vector<int64_t> ints((size_t)counts[2]);
  for (int64_t &one : ints) one = in.next(INT64_MIN, INT64_MAX);
  in.end();
  const StoredTensor &given = tensor("floats." + std::to_string(number));
  if (given.dtype != "F64" || given.bytes != 8 * counts[3]) damaged(name + " lacks its floats");
  std::vector<double> floats((size_t)counts[3]);
  if (counts[3]) std::memcpy(floats.data(), given.data, (size_t)given.bytes);
  std::vector<cod_buffer> memory;
  for (const auto &one : constants) memory.push_back({one.data, one.bytes});
  const cod_program_code code{instructions.data(),
                              operands.data(),
                              ints.data(),
                              floats.data(),
                              counts[0],
                              counts[1],
                              counts[2],
                              counts[3],
                              memory.data(),
                              &input,
                              &output,
                              (int64_t)memory.size(),
                              1,
                              1,
                              made.arena_bytes};
  void *built = nullptr;
  int64_t wrong = -1;
  const int32_t result = cod_program_build(&code, &built, &wrong);
  if (result == COD_NO_MEMORY) throw std::bad_alloc();
  if (result != COD_OK)
    damaged("instruction " + std::to_string(wrong) + " of " + name + " does not fit");
  made.program = std::shared_ptr<void>(built, cod_program_free);
  return made;
}

// Mean and deviation of the channels that the network was trained with.
void read_normalization(const Container &file, float *mean, float *deviation) {
  const auto found = file.tensors.find("normalization");
  if (found == file.tensors.end() || found->second.dtype != "F32" || found->second.bytes != 24)
    damaged("it has no normalization of three channels");
  std::memcpy(mean, found->second.data, 12);
  std::memcpy(deviation, found->second.data + 12, 12);
  for (int i = 0; i < 3; i++)
    if (!std::isfinite(mean[i]) || !std::isfinite(deviation[i]) || !(deviation[i] > 0))
      damaged("a normalization that divides by nothing");
}

}  // namespace

ProgramFile::ProgramFile(Source &source, int threads) {
  const Container file(source, "u8");
  metadata = file.metadata;
  const auto text = [&](const char *key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  if (text("format") != "codtdq-program")
    throw Refusal("it is not a program file; codtdq export --to program writes one");
  if (text("version") != "1")
    throw Refusal("it has format version " + text("version").substr(0, 16) +
                  "; this runtime reads version 1: install the codtdq-runtime that fits");
  // Constants are packed beside the hash; nobody uses them if it does not fit.
  Seal seal(file);
  const auto table = file.tensors.find("constants");
  if (table == file.tensors.end()) damaged("it has no constants");
  Stream in(table->second, "constants");
  constants = Constants(file, source, seal, threads).read(in, memory);
  seal.check();
  const std::map<std::string, Postprocess> known = {{"none", Postprocess::kNone},
                                                    {"sigmoid", Postprocess::kSigmoid},
                                                    {"sigmoid-minmax", Postprocess::kSigmoidMinmax},
                                                    {"binary", Postprocess::kBinary}};
  const auto wanted = known.find(text("postprocess"));
  if (wanted == known.end()) damaged("it names no postprocess that there is");
  postprocess = wanted->second;
  read_normalization(file, mean, deviation);
  int64_t count = 0;
  while (count <= kMostPrograms && file.tensors.count("code." + std::to_string(count))) count++;
  if (!count || count > kMostPrograms) damaged("it has no program, or too many");
  for (int64_t i = 0; i < count; i++) programs.push_back(program(file, i, constants));
}

}  // namespace cod
