// A target for libFuzzer: calls of the C interface, made of the bytes of an input. A call begins as
// a sound one; about one number in sixteen is then another one. Buffers are as long as they are
// said to be, on the heap: AddressSanitizer sees what goes beyond them. Every answer is allowed but
// a success of weights that do not come back as they were packed.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "codtdq_native.h"
#include "time_limit.h"

namespace {

constexpr int64_t kLongest = 1 << 16;  // elements of a buffer
constexpr int64_t kSmallSide = 18;     // channels: a vector of 16, and what is left of one

// The bytes of an input as numbers; zeros behind their end.
class Bytes {
 public:
  Bytes(const uint8_t *data, size_t size) : data_(data), left_(size) {}
  uint8_t next() { return left_ ? (left_--, *data_++) : 0; }
  bool flip() { return next() & 1; }
  int64_t below(int64_t most) { return next() % most; }
  // A number of channels, from 1: three in four are small ones, whose calls are short.
  int64_t side(int64_t most) {
    const uint8_t draw = next();
    return 1 + draw % (draw < 192 ? std::min(most, kSmallSide) : most);
  }
  uint64_t word() {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value = value << 8 | next();
    return value;
  }
  // The number that a sound call has, or another one.
  template <typename T = int64_t>
  T maybe(T value) {
    const uint8_t how = next();
    if (how < 240) return value;
    constexpr T most = std::numeric_limits<T>::max(), least = std::numeric_limits<T>::min();
    switch (how) {
      case 240:
        return 0;
      case 241:
        return 1;
      case 242:
        return -1;
      case 243:
        return most;
      case 244:
        return least;
      case 245:
        return (T)1 << 20;
      case 246:
        return (T)((int64_t)1 << 40);  // 0 as a short number
      case 247:
        return most / 2;
      case 248:
        return (T)(0u - (uint64_t)value);
      case 249:
        return (T)(2u * (uint64_t)value);
      case 250:
        return value / 2;
      case 251:
        return (T)((uint64_t)value - 1);
      case 252:
        return (T)((uint64_t)value + 1);
      case 253:
        return (T)((uint64_t)value + next());
      case 254:
        return (T)((uint64_t)value - next());
      default:
        return (T)word();
    }
  }

 private:
  const uint8_t *data_;
  size_t left_;
};

// As many elements as it is said to have, aligned to 64 bytes where that is asked for.
template <typename T>
class Room {
 public:
  // what: how many a sound call needs; the number that is told may be another one
  Room(Bytes &bytes, int64_t what, bool null_allowed = false) {
    count = bytes.maybe(what);
    if (count > kLongest) count = what;
    absent_ = null_allowed && bytes.next() > 250;
    const size_t size = (count > 0 ? (size_t)count : 0) * sizeof(T);
    if (posix_memalign(&memory_, 64, size ? size : 1)) abort();
    uint64_t state = bytes.next() + 1;
    const int kind = (int)bytes.below(8);
    for (int64_t i = 0; i < count; i++) at(i) = value(state, kind);
  }
  ~Room() { free(memory_); }
  Room(const Room &) = delete;
  T *data() const { return absent_ ? nullptr : (T *)memory_; }
  T &at(int64_t i) const { return ((T *)memory_)[i]; }
  int64_t count;

 private:
  static T value(uint64_t &state, int kind) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const int number = (int)(state >> 56) - 128;
    if constexpr (std::is_floating_point<T>::value) {
      const bool seldom = (state >> 40 & 63) == 0;
      if (kind == 1 && seldom) return std::numeric_limits<T>::quiet_NaN();
      if (kind == 2 && seldom) return std::numeric_limits<T>::infinity();
      if (kind == 3) return (T)number * (T)1e36;
      if (kind == 4) return (T)number * (T)1e-40;
      if (kind == 5) return 0;
      return (T)number / 16;
    } else {
      return (T)(kind == 1 ? number : kind == 2 ? number & 15 : number % 8);
    }
  }
  void *memory_ = nullptr;
  bool absent_ = false;
};

// Most often one: helpers that are woken for a small call take longer than the call.
int32_t threads(Bytes &bytes) {
  const uint8_t draw = bytes.next();
  return bytes.maybe<int32_t>(draw < 208 ? 1 : draw < 232 ? 2 : 3);
}

// Rows of floats, by rows or by channels.
struct Rows {
  int64_t rows, channels;
  bool turned;
  Room<float> values;
  cod_rows view;
  Rows(Bytes &bytes, int64_t rows, int64_t channels)
      : rows(rows), channels(channels), turned(bytes.flip()), values(bytes, rows * channels, true) {
    view.data = values.data();
    view.rows = bytes.maybe(rows), view.channels = bytes.maybe(channels);
    view.row_stride = bytes.maybe(turned ? 1 : channels);
    view.channel_stride = bytes.maybe(turned ? rows : 1);
    view.count = values.count;
  }
};

cod_quant_spec spec_of(Bytes &bytes) {
  cod_quant_spec spec{};
  spec.bits = bytes.maybe<int32_t>(2 + (int32_t)bytes.below(7));
  spec.group = bytes.maybe<int32_t>(4 + 4 * (int32_t)bytes.below(16));
  spec.literal = bytes.flip(), spec.guarded = bytes.flip();
  spec.use_percentile = bytes.flip(), spec.use_tau = bytes.flip();
  spec.use_zero_ratio = bytes.flip();
  spec.pre = bytes.maybe<int32_t>((int32_t)bytes.below(3));
  spec.percentile = bytes.maybe<int32_t>((int32_t)bytes.next()) / 256.0;
  spec.tau = bytes.maybe<int32_t>((int32_t)bytes.next()) / 64.0;
  spec.zero_ratio = bytes.maybe<int32_t>((int32_t)bytes.next()) / 256.0;
  return spec;
}

// Carriers to write to.
struct Carried {
  Room<int8_t> data;
  Room<float> unit;
  Room<uint8_t> multiplier;
  cod_carried out;
  Carried(Bytes &bytes, int64_t rows, int64_t width, int64_t unit_rows, int64_t unit_stride,
          int64_t multipliers)
      : data(bytes, rows * cod_carrier_depth(width), true),
        unit(bytes, (rows + unit_rows - 1) / unit_rows * (unit_stride ? unit_stride : 1), true),
        multiplier(bytes, multipliers, true) {
    out.data = data.data(), out.stride = bytes.maybe(cod_carrier_depth(width));
    out.unit = unit.data(), out.unit_rows = bytes.maybe(unit_rows);
    out.multiplier = bytes.flip() ? multiplier.data() : nullptr;
    out.unit_stride = bytes.maybe(unit_stride);
    out.bytes = data.count, out.unit_count = unit.count, out.multiplier_count = multiplier.count;
  }
};

struct Output {
  Room<float> data, bias;
  cod_output y;
  Output(Bytes &bytes, int64_t rows, int64_t columns, int64_t biases)
      : data(bytes, rows * columns, true), bias(bytes, biases) {
    y.data = data.data(), y.row_stride = bytes.maybe(columns);
    y.bias = bytes.flip() ? bias.data() : nullptr;
    y.activation = bytes.maybe<int32_t>((int32_t)bytes.below(3));
    y.count = data.count, y.bias_count = bias.count;
  }
};

void quantize(Bytes &bytes) {
  Rows x(bytes, bytes.below(9), bytes.side(80));
  const cod_quant_spec spec = spec_of(bytes);
  const int64_t group = spec.group > 0 && spec.group < 1000 ? spec.group : 4;
  const int64_t count = (x.channels + group - 1) / group, stride = count * group + bytes.below(5);
  Room<int8_t> codes(bytes, x.rows * stride);
  Room<float> groups(bytes, 2 * x.rows * count), x_hat(bytes, x.rows * x.channels);
  Room<uint8_t> flags(bytes, 2 * x.rows * count);
  Room<int32_t> sums(bytes, x.rows * count);
  const int64_t own = std::min({groups.count / 2, flags.count / 2, sums.count});
  cod_quantized out{};
  if (bytes.flip()) out.codes = codes.data();
  if (bytes.flip()) out.step = groups.data();
  if (bytes.flip()) out.radius = groups.data() + (own > 0 ? own : 0);
  if (bytes.flip()) out.active = flags.data();
  if (bytes.flip()) out.infeasible = flags.data() + (own > 0 ? own : 0);
  if (bytes.flip()) out.x_hat = x_hat.data();
  if (bytes.flip()) out.sums = sums.data();
  out.code_stride = bytes.maybe(stride);
  out.code_bytes = codes.count, out.group_count = own, out.value_count = x_hat.count;
  cod_quantize_groups(&x.view, &spec, &out, threads(bytes));
}

void magnitudes(Bytes &bytes) {
  Rows x(bytes, bytes.below(20), bytes.side(80));
  const int32_t each = bytes.flip();
  Room<float> out(bytes, each ? x.channels : 1, true);
  cod_absmax(&x.view, each, out.data(), out.count, threads(bytes));
}

void carry_groups(Bytes &bytes) {
  Rows x(bytes, bytes.below(9), bytes.side(80));
  cod_quant_spec spec = spec_of(bytes);
  const int32_t asymmetric = bytes.flip();
  if (asymmetric && bytes.flip())
    spec.use_percentile = spec.use_tau = spec.use_zero_ratio = spec.guarded = 0;
  const int64_t group = spec.group > 0 ? spec.group : 4;
  Carried out(bytes, x.rows, x.channels, 1 + bytes.below(4), 0,
              x.rows * ((x.channels + group - 1) / group));
  cod_carry_groups(&x.view, &spec, asymmetric, &out.out, threads(bytes));
}

void carry_transformed(Bytes &bytes, bool pixels) {
  Rows x(bytes, pixels ? 6 * bytes.below(4) : bytes.below(9), bytes.side(80));
  cod_carry_spec spec{};
  spec.bits = bytes.maybe<int32_t>(2 + (int32_t)bytes.below(6));
  spec.group = bytes.maybe<int32_t>(4 + 4 * (int32_t)bytes.below(16));
  spec.trials = bytes.maybe<int32_t>(1 + (int32_t)bytes.below(16));
  spec.asymmetric = bytes.flip();
  spec.zero_weight = (float)bytes.next() / 32 - (bytes.next() > 250 ? 100 : 0);
  Room<float> shift(bytes, x.channels), scale(bytes, x.channels), inverse(bytes, x.channels);
  Room<int32_t> order(bytes, x.channels);
  const bool sound = bytes.next() < 200;
  for (int64_t i = 0; sound && i < order.count; i++)
    order.at(i) = (int32_t)(order.count - 1 - i) % (int32_t)x.channels;
  if (bytes.flip()) spec.transform.shift = shift.data();
  if (bytes.flip()) spec.transform.scale = scale.data();
  if (bytes.next() < 200) spec.transform.inverse = inverse.data();
  if (bytes.flip()) spec.transform.order = order.data();
  spec.transform.hadamard = bytes.maybe<int64_t>(bytes.flip());
  spec.transform.count = std::min({shift.count, scale.count, inverse.count, order.count});
  const int64_t group = spec.group > 0 ? spec.group : 4;
  if (!pixels) {
    Carried out(bytes, x.rows, x.channels, 1 + bytes.below(4), 0,
                x.rows * ((x.channels + group - 1) / group));
    cod_carry_tokens(&x.view, &spec, &out.out, threads(bytes));
    return;
  }
  const int64_t stride = bytes.flip() ? x.channels : 0;
  Carried out(bytes, x.rows, x.channels, 6, stride,
              x.rows / 6 * ((6 + group - 1) / group) * x.channels);
  cod_carry_pixels(&x.view, &spec, &out.out, threads(bytes));
}

void carry_fixed(Bytes &bytes) {
  Rows x(bytes, bytes.below(9), bytes.side(80));
  const int32_t bits = bytes.maybe<int32_t>(2 + (int32_t)bytes.below(7));
  const bool each = bytes.flip(), zeroed = bytes.flip(), own = each && bytes.flip();
  Room<float> step(bytes, each ? x.channels : 1);
  Room<int32_t> zero(bytes, each ? x.channels : 1);
  const bool sound = bytes.next() < 200;
  for (int64_t i = 0; sound && i < step.count; i++) step.at(i) = 0.25f + (float)(i % 7);
  for (int64_t i = 0; sound && i < zero.count; i++) zero.at(i) = (int32_t)(i & 3);
  const int64_t width = (zeroed && bits == 8 ? 2 : 1) * x.channels;
  Carried out(bytes, x.rows, width, 1 + bytes.below(9), own ? x.channels : 0, step.count);
  cod_carry_fixed(&x.view, bits, step.data(), zeroed ? zero.data() : nullptr,
                  std::min(step.count, zero.count), bytes.maybe<int32_t>((int32_t)bytes.below(3)),
                  &out.out, threads(bytes));
}

// Packed weights, with memory of their own.
struct Weight {
  cod_carrier_weight w{};
  bool packed = false;
  std::unique_ptr<Room<uint8_t>> bytes_of;
  std::unique_ptr<Room<int8_t>> multiplier;
  std::unique_ptr<Room<float>> factor;

  Weight(Bytes &bytes, int64_t outputs, int64_t taps, int64_t inputs) {
    const int32_t bits = bytes.maybe<int32_t>(bytes.flip() ? 4 : 8);
    const int32_t group = bytes.maybe<int32_t>(16 * (int32_t)bytes.below(4));
    const int32_t multiplied = bits == 4 && bytes.flip();
    if (cod_carrier_weight_describe(bytes.maybe(outputs), bytes.maybe(taps), bytes.maybe(inputs),
                                    bits, group, multiplied, &w) != COD_OK)
      return;
    if (std::max({w.packed_bytes, w.multiplier_bytes, w.factor_count, w.outputs * w.inputs}) >
        kLongest)
      return;
    // lengths of this memory are the layout's: they are no numbers of a caller
    uint8_t none = 0;
    Bytes plain(&none, 0);
    bytes_of = std::make_unique<Room<uint8_t>>(plain, w.packed_bytes);
    multiplier = std::make_unique<Room<int8_t>>(plain, w.multiplier_bytes);
    factor = std::make_unique<Room<float>>(plain, w.factor_count);
    std::memset(bytes_of->data(), 0, (size_t)w.packed_bytes);
    w.packed = bytes_of->data(), w.factor = factor->data();
    w.multiplier = w.multiplier_bytes ? multiplier->data() : nullptr;
    const int64_t groups = w.group ? (w.inputs + w.group - 1) / w.group : 1;
    const int64_t count = w.outputs * w.taps * w.inputs, times = w.outputs * w.taps * groups;
    Room<int8_t> codes(bytes, count), multipliers(bytes, times);
    Room<float> factors(bytes, w.outputs);
    const bool sound = bytes.next() < 200;
    for (int64_t i = 0; sound && i < codes.count; i++) codes.at(i) = (int8_t)(i % 16 - 8);
    for (int64_t i = 0; sound && i < multipliers.count; i++)
      multipliers.at(i) = (int8_t)(i % 2 ? -(i % 15 + 1) : i % 15 + 1);
    packed = cod_carrier_weight_pack(
                 codes.data(), codes.count, w.multiplier_bytes ? multipliers.data() : nullptr,
                 multipliers.count, factors.data(), factors.count, &w, threads(bytes)) == COD_OK;
    if (!packed) return;
    Room<int8_t> again(bytes, count), times_again(bytes, times);
    Room<float> factors_again(bytes, w.outputs);
    const int32_t done = cod_carrier_weight_unpack(
        &w, again.data(), again.count, w.multiplier_bytes ? times_again.data() : nullptr,
        times_again.count, factors_again.data(), factors_again.count);
    if (done == COD_OK && std::memcmp(again.data(), codes.data(), (size_t)count)) abort();
    pack_nibbles(bytes, codes, w.multiplier_bytes ? multipliers.data() : nullptr, multipliers.count,
                 factors);
  }

  // The same codes two to a byte give the same panels, or are refused where there are too few.
  void pack_nibbles(Bytes &bytes, Room<int8_t> &codes, const int8_t *times, int64_t time_count,
                    Room<float> &factors) {
    const int64_t row = w.taps * w.inputs, width = (row + 1) / 2;
    Room<uint8_t> nibbles(bytes, w.outputs * width), again(bytes, w.packed_bytes);
    if (again.count < w.packed_bytes || (uintptr_t)again.data() % 64) return;
    std::memset(again.data(), 0, (size_t)w.packed_bytes);
    for (int64_t i = 0; i < nibbles.count; i++) {
      const int64_t first = i / width * row + i % width * 2;
      const bool two = i % width * 2 + 1 < row;
      if (i / width >= w.outputs) break;
      nibbles.at(i) =
          (uint8_t)((codes.at(first) & 15) | (two ? (codes.at(first + 1) & 15) << 4 : 0));
    }
    cod_carrier_weight other = w;
    other.packed = again.data();
    const int32_t done =
        cod_carrier_weight_pack_nibbles(nibbles.data(), nibbles.count, times, time_count,
                                        factors.data(), factors.count, &other, threads(bytes));
    if (done == COD_OK && (w.bits != 4 || nibbles.count < w.outputs * width ||
                           std::memcmp(again.data(), w.packed, (size_t)w.packed_bytes)))
      abort();
  }

  // Other numbers in the description; its memory stays as long as it is said to be.
  void change(Bytes &bytes) {
    w.outputs = bytes.maybe(w.outputs), w.taps = bytes.maybe(w.taps);
    w.inputs = bytes.maybe(w.inputs), w.depth = bytes.maybe(w.depth);
    w.panels = bytes.maybe(w.panels), w.panel_bytes = bytes.maybe(w.panel_bytes);
    w.packed_bytes = std::min(w.packed_bytes, bytes.maybe(w.packed_bytes));
    w.multiplier_bytes = std::min(w.multiplier_bytes, bytes.maybe(w.multiplier_bytes));
    w.factor_count = std::min(w.factor_count, bytes.maybe(w.factor_count));
    w.bits = bytes.maybe(w.bits), w.group = bytes.maybe(w.group);
    w.run = bytes.maybe(w.run), w.columns = bytes.maybe(w.columns);
  }
};

struct Window {
  cod_geometry g{};
  explicit Window(Bytes &bytes) {
    g.batch = bytes.below(3), g.in_h = 1 + bytes.below(7), g.in_w = 1 + bytes.below(7);
    g.kernel_h = 1 + (int32_t)bytes.below(3), g.kernel_w = 1 + (int32_t)bytes.below(3);
    g.stride_h = 1 + (int32_t)bytes.below(2), g.stride_w = 1 + (int32_t)bytes.below(2);
    g.pad_h = (int32_t)bytes.below(3), g.pad_w = (int32_t)bytes.below(3);
    g.dilation_h = 1 + (int32_t)bytes.below(2), g.dilation_w = 1 + (int32_t)bytes.below(2);
    g.out_h = 1 + (g.in_h + 2 * g.pad_h - g.dilation_h * (g.kernel_h - 1) - 1) / g.stride_h;
    g.out_w = 1 + (g.in_w + 2 * g.pad_w - g.dilation_w * (g.kernel_w - 1) - 1) / g.stride_w;
    g.out_h = std::max<int64_t>(g.out_h, 0), g.out_w = std::max<int64_t>(g.out_w, 0);
  }
  void change(Bytes &bytes) {
    for (int64_t *each : {&g.batch, &g.in_h, &g.in_w, &g.out_h, &g.out_w})
      *each = bytes.maybe(*each);
    for (int32_t *each : {&g.kernel_h, &g.kernel_w, &g.stride_h, &g.stride_w, &g.pad_h, &g.pad_w,
                          &g.dilation_h, &g.dilation_w})
      *each = bytes.maybe(*each);
  }
  int64_t read() const { return g.batch * g.in_h * g.in_w; }
  int64_t rows() const { return g.batch * g.out_h * g.out_w; }
};

cod_carrier input_of(Bytes &bytes, const Room<int8_t> &data, const Room<float> &unit,
                     int64_t stride, int64_t unit_rows, int64_t unit_stride) {
  return {data.data(),
          bytes.maybe(stride),
          unit.data(),
          bytes.maybe(unit_rows),
          bytes.maybe(unit_stride),
          data.count,
          unit.count};
}

void conv(Bytes &bytes) {
  Window window(bytes);
  const int64_t outputs = bytes.side(70), inputs = bytes.side(70);
  Weight weight(bytes, outputs, (int64_t)window.g.kernel_h * window.g.kernel_w, inputs);
  if (!weight.packed) return;
  const int64_t image = window.g.in_h * window.g.in_w, depth = weight.w.depth;
  Room<int8_t> data(bytes, window.read() * depth, true);
  Room<float> unit(bytes, window.g.batch, true);
  Output y(bytes, window.rows(), weight.w.outputs, weight.w.outputs);
  const cod_carrier x = input_of(bytes, data, unit, depth, image, 0);
  window.change(bytes), weight.change(bytes);
  cod_carrier_conv(&x, &window.g, &weight.w, &y.y, threads(bytes));
}

void depthwise(Bytes &bytes) {
  Window window(bytes);
  const int64_t channels = bytes.side(70), taps = (int64_t)window.g.kernel_h * window.g.kernel_w;
  const int64_t image = window.g.in_h * window.g.in_w, own = bytes.flip() ? channels : 0;
  Room<int8_t> data(bytes, window.read() * channels, true), weight(bytes, taps * channels, true);
  Room<float> unit(bytes, window.g.batch * (own ? own : 1), true), factor(bytes, channels, true);
  Output y(bytes, window.rows(), channels, channels);
  if (bytes.next() > 200) y.y.activation = COD_ACT_GATED_GELU;
  const cod_carrier x = input_of(bytes, data, unit, channels, image, own);
  window.change(bytes);
  cod_carrier_depthwise(&x, &window.g, bytes.maybe(channels), weight.data(), weight.count,
                        factor.data(), factor.count, &y.y, threads(bytes));
}

void float_weights(Bytes &bytes) {
  const int64_t depth = bytes.side(50), outputs = bytes.side(50);
  Room<float> w(bytes, depth * outputs, true),
      packed(bytes, cod_float_packed(depth, outputs), true);
  const bool turned = bytes.flip();
  const int64_t told[] = {bytes.maybe(depth), bytes.maybe(outputs)};
  const int32_t done =
      cod_float_pack(w.data(), w.count, told[0], told[1], bytes.maybe(turned ? 1 : outputs),
                     bytes.maybe(turned ? depth : 1), packed.data(), packed.count);
  Room<float> again(bytes, depth * outputs, true);
  if (done == COD_OK)
    cod_float_unpack(packed.data(), packed.count, bytes.maybe(told[0]), bytes.maybe(told[1]),
                     again.data(), again.count);
}

void deform(Bytes &bytes) {
  const int64_t batch = 1 + bytes.below(2), height = 1 + bytes.below(6), width = 1 + bytes.below(6);
  const int64_t channels = 1 + bytes.below(20), outputs = 1 + bytes.below(20);
  const int64_t pixels = height * width;
  Room<float> x(bytes, batch * pixels * channels, true), offsets(bytes, batch * 18 * pixels, true);
  Room<float> packed(bytes, cod_float_packed(9 * channels, outputs), true);
  Output y(bytes, batch * pixels, outputs, outputs);
  if (bytes.next() < 200) y.y.activation = COD_ACT_NONE;
  const cod_deform shape = {bytes.maybe(batch),    bytes.maybe(height),      bytes.maybe(width),
                            bytes.maybe(channels), bytes.maybe(18 * pixels), bytes.maybe(pixels),
                            bytes.maybe(width),    bytes.maybe((int64_t)1),  x.count,
                            offsets.count};
  cod_deform_conv(x.data(), offsets.data(), &shape, packed.data(), packed.count,
                  bytes.maybe(outputs), &y.y, threads(bytes));
}

std::vector<std::string> sets() {
  std::istringstream words(cod_available());
  std::vector<std::string> found;
  for (std::string one; words >> one;) found.push_back(one);
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const std::vector<std::string> names = sets();
  const fuzz::TimeLimit limit;
  Bytes bytes(data, size);
  if (cod_select(names[(size_t)bytes.below((int64_t)names.size())].c_str()) != COD_OK) abort();
  switch (bytes.below(11)) {
    case 0:
      quantize(bytes);
      break;
    case 1:
      magnitudes(bytes);
      break;
    case 2:
      carry_groups(bytes);
      break;
    case 3:
      carry_transformed(bytes, false);
      break;
    case 4:
      carry_transformed(bytes, true);
      break;
    case 5:
      carry_fixed(bytes);
      break;
    case 6: {
      const int64_t outputs = bytes.side(70), taps = 1 + bytes.below(9);
      Weight weight(bytes, outputs, taps, bytes.side(70));
      break;
    }
    case 7:
      conv(bytes);
      break;
    case 8:
      depthwise(bytes);
      break;
    case 9:
      float_weights(bytes);
      break;
    default:
      deform(bytes);
  }
  return 0;
}
