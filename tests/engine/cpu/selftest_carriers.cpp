// Self-test of carriers: "generic" against naive loops written from the formulas, every other set
// against "generic". All of it bit by bit.
#include <cstring>

#include "selftest.h"

namespace {

std::string differs_in_bits(const char *name, const std::vector<float> &a,
                            const std::vector<float> &b) {
  for (size_t i = 0; i < a.size(); i++)
    if (!same(a[i], b[i]) || std::signbit(a[i]) != std::signbit(b[i]))
      if (a[i] == a[i] || b[i] == b[i])
        return text(name, "[", i, "] is ", a[i], ", expected ", b[i]);
  return "";
}

// ---------------------------------------------------------------- encoders

struct Carried {
  std::vector<int8_t> data;
  std::vector<float> unit;
  std::vector<uint8_t> multiplier;
  int64_t stride, unit_rows, unit_stride;

  // own: channels of an image that have units of their own, or 0
  Carried(int64_t rows, int64_t channels, int64_t count, int64_t unit_rows, int64_t own = 0)
      : stride(cod_carrier_depth(channels) + 3), unit_rows(unit_rows), unit_stride(own) {
    data.assign((size_t)(rows * stride), 77);
    unit.assign((size_t)((rows + unit_rows - 1) / unit_rows * std::max<int64_t>(own, 1)), 77);
    multiplier.assign((size_t)count, 77);
  }
  cod_carried view() {
    return {data.data(),
            stride,
            unit.data(),
            unit_rows,
            multiplier.data(),
            unit_stride,
            (int64_t)data.size(),
            (int64_t)unit.size(),
            (int64_t)multiplier.size()};
  }
};

using ::differs;

std::string differs(const Carried &a, const Carried &b) {
  for (const std::string &one :
       {differs_in_bits("unit", a.unit, b.unit), differs("multiplier", a.multiplier, b.multiplier),
        differs("data", a.data, b.data)})
    if (!one.empty()) return one;
  return "";
}

// Rows by the formulas, from the steps of groups under their largest magnitudes (4 bits).
Carried naive_groups(const std::vector<float> &x, int64_t rows, int64_t channels, int64_t group) {
  const int64_t count = (channels + group - 1) / group;
  Carried out(rows, channels, rows * count, 1);
  std::fill(out.data.begin(), out.data.end(), 0);
  for (int64_t r = 0; r < rows; r++) {
    std::vector<float> step;
    bool finite = true;
    for (int64_t g = 0; g < count; g++) {
      float largest = 0.0f;
      for (int64_t c = g * group; c < std::min(channels, (g + 1) * group); c++) {
        finite &= std::isfinite(x[r * channels + c]);
        largest = std::max(largest, std::fabs(x[r * channels + c]));
      }
      step.push_back(std::max(largest / 7.0f, 1e-8f));
    }
    const float unit = *std::max_element(step.begin(), step.end()) * (1.0f / 15.0f);
    out.unit[r] = finite ? unit : kNan;
    for (int64_t g = 0; g < count; g++) {
      const float m = std::min(std::max(std::ceil(step[g] * (1.0f / unit)), 1.0f), 15.0f);
      out.multiplier[r * count + g] = finite ? (uint8_t)m : 0;
      const float inverse = 1.0f / (unit * m);
      for (int64_t c = g * group; finite && c < std::min(channels, (g + 1) * group); c++) {
        const float q = std::nearbyint(x[r * channels + c] * inverse);
        out.data[r * out.stride + c] = (int8_t)(m * std::min(std::max(q, -8.0f), 7.0f));
      }
    }
  }
  return out;
}

struct Encoding {
  // kind: 0 largest, 1 DCRP, 2 guarded, 3 asymmetric, 4 fixed, 5 its zeros, 6 units of channels,
  // 7 tried tokens behind a transform, 8 tried pixels, 9 tried pixels with units of channels
  int bits, group, kind;
  int64_t rows, channels, unit_rows;
  bool turned;
};

Carried encoded(const Encoding &e, const std::vector<float> &x, int threads) {
  std::vector<float> other(x);
  if (e.turned)
    for (int64_t i = 0; i < e.rows * e.channels; i++)
      other[i % e.channels * e.rows + i / e.channels] = x[i];
  const cod_rows rows{
      other.data(),         e.rows, e.channels, e.turned ? 1 : e.channels, e.turned ? e.rows : 1,
      (int64_t)other.size()};
  const int64_t count = (e.channels + e.group - 1) / e.group;
  if (e.kind >= 7) {
    const bool pixels = e.kind > 7;
    const int64_t groups = (e.unit_rows + e.group - 1) / e.group * (e.rows / e.unit_rows);
    Carried out(e.rows, e.channels, pixels ? groups * e.channels : e.rows * count, e.unit_rows,
                e.kind == 9 ? e.channels : 0);
    std::vector<float> shift, scale, inverse;
    std::vector<int32_t> order;
    for (int64_t c = 0; c < e.channels; c++) {
      shift.push_back(0.1f * (float)(c % 5)), scale.push_back(0.5f + 0.3f * (float)(c % 7));
      inverse.push_back(1.0f / scale.back()), order.push_back((int32_t)(e.channels - 1 - c));
    }
    cod_carry_spec spec{e.bits, e.group, 3, 1, 0.5f, {}};
    if (!pixels)
      spec.transform = {shift.data(), scale.data(), inverse.data(), order.data(), 1, e.channels};
    const cod_carried view = out.view();
    if ((pixels ? cod_carry_pixels : cod_carry_tokens)(&rows, &spec, &view, threads))
      out.unit.assign(out.unit.size(), -1.0f);
    return out;
  }
  if (e.kind >= 4) {
    Carried out(e.rows, e.channels, e.channels, e.unit_rows, e.kind == 6 ? e.channels : 0);
    std::vector<float> step;
    std::vector<int32_t> zero;
    for (int64_t c = 0; c < e.channels; c++) {
      step.push_back(0.01f * (float)(1 + c * 7 % 23));
      zero.push_back((int32_t)(c % (1 << e.bits)));
    }
    const cod_carried view = out.view();
    if (cod_carry_fixed(&rows, e.bits, step.data(), e.kind == 5 ? zero.data() : nullptr, e.channels,
                        COD_PRE_NONE, &view, threads))
      out.unit.assign(out.unit.size(), -1.0f);
    return out;
  }
  Carried out(e.rows, e.channels, e.rows * count, e.unit_rows);
  cod_quant_spec spec{};
  spec.bits = e.bits, spec.group = e.group;
  spec.use_tau = spec.use_zero_ratio = e.kind == 1 || e.kind == 2, spec.guarded = e.kind == 2;
  spec.tau = 1.0, spec.zero_ratio = 0.2;
  const cod_carried view = out.view();
  if (cod_carry_groups(&rows, &spec, e.kind == 3, &view, threads))
    out.unit.assign(out.unit.size(), -1.0f);
  return out;
}

void check_encoders(const std::string &set) {
  for (int kind = 0; kind < 10; kind++)
    for (int64_t channels : {5, 32, 75, 256})
      for (int group : {16, 32, 48})
        for (bool turned : {false, true}) {
          Encoding e{4, group, kind, 30, channels, kind >= 4 && kind != 7 ? 30 : 1, turned};
          if (channels == 75) e.bits = 3, e.unit_rows = 15;
          const std::vector<float> x = difficult(e.rows, channels, (uint64_t)(channels + group));
          cod_select("generic");
          const Carried expected = encoded(e, x, 1);
          cod_select(set.c_str());
          const Carried found = encoded(e, x, 2);
          std::string trouble = differs(found, expected);
          if (kind == 0 && e.bits == 4 && trouble.empty())
            trouble = differs(found, naive_groups(x, e.rows, channels, group));
          report(text(set, " carry kind ", kind, " ", channels, " channels, groups of ", group,
                      turned ? ", turned" : ""),
                 trouble);
        }
}

// ---------------------------------------------------------------- products

struct Operator {
  int64_t outputs, inputs;
  int bits, group;
  cod_geometry g;
  bool depthwise;
};

struct Weights {
  std::vector<int8_t> codes, multiplier;
  std::vector<float> factor, bias;
  int64_t groups;
  Weights(const Operator &o, int64_t taps) {
    Random random{(uint64_t)(o.outputs * 31 + o.inputs)};
    const int most = o.bits == 8 ? 127 : 8;
    for (int64_t i = 0; i < o.outputs * taps * o.inputs; i++) {
      const int code = random.below(2 * most + (o.bits == 8)) - most;
      codes.push_back((int8_t)code);
    }
    groups = o.group ? (o.inputs + o.group - 1) / o.group : 1;
    for (int64_t i = 0; o.group && i < o.outputs * taps * groups; i++) {
      const int p = 1 + random.below(15);
      multiplier.push_back((int8_t)(random.below(2) ? p : -p));
    }
    for (int64_t i = 0; i < o.outputs; i++)
      factor.push_back(random.bell()), bias.push_back(random.bell());
  }
  int at(const Operator &o, int64_t taps, int64_t n, int64_t t, int64_t i) const {
    const int code = codes[(n * taps + t) * o.inputs + i];
    return o.group ? code * multiplier[(n * taps + t) * groups + i / o.group] : code;
  }
};

struct Bytes {
  std::vector<int8_t> data;
  std::vector<float> unit;
  int64_t stride, unit_rows;
  Bytes(int64_t rows, int64_t channels, int64_t shared)
      : stride(cod_carrier_depth(channels)), unit_rows(shared) {
    Random random{(uint64_t)(rows + channels)};
    data.assign((size_t)(rows * stride), 0);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < channels; c++)
        data[r * stride + c] = (int8_t)(r % 5 == 0   ? 127
                                        : r % 7 == 0 ? -127
                                                     : random.below(255) - 127);
    for (int64_t r = 0; r < rows; r += shared) unit.push_back(random.uniform() + 0.1f);
    if (unit.size() > 2) unit[2] = kNan;
  }
};

// Codes two to a byte, the first in the low half; every output begins with a byte.
std::vector<uint8_t> nibbles(const std::vector<int8_t> &codes, int64_t outputs) {
  std::vector<uint8_t> pairs;
  const auto row = (int64_t)codes.size() / outputs;
  for (int64_t n = 0; n < outputs; n++)
    for (int64_t i = 0; i < row; i += 2) {
      const int second = i + 1 < row ? codes[n * row + i + 1] : 0;
      pairs.push_back((uint8_t)((codes[n * row + i] & 15) | (second & 15) << 4));
    }
  return pairs;
}

std::vector<float> product(const Operator &o, const Bytes &x, const Weights &w, int threads) {
  const int64_t taps = (int64_t)o.g.kernel_h * o.g.kernel_w;
  const int64_t rows = o.g.batch * o.g.out_h * o.g.out_w;
  std::vector<float> y((size_t)(rows * o.outputs), 77.0f);
  const cod_carrier input{x.data.data(),         x.stride, x.unit.data(),
                          x.unit_rows,           0,        (int64_t)x.data.size(),
                          (int64_t)x.unit.size()};
  const cod_output output{y.data(),     o.outputs,         w.bias.data(),
                          COD_ACT_NONE, (int64_t)y.size(), (int64_t)w.bias.size()};
  if (o.depthwise) {
    std::vector<int8_t> turned;  // [taps, channels]
    for (int64_t t = 0; t < taps; t++)
      for (int64_t c = 0; c < o.outputs; c++) turned.push_back(w.codes[c * taps + t]);
    if (cod_carrier_depthwise(&input, &o.g, o.outputs, turned.data(), (int64_t)turned.size(),
                              w.factor.data(), (int64_t)w.factor.size(), &output, threads))
      y.assign(y.size(), -77.0f);
    return y;
  }
  cod_carrier_weight packed;
  if (cod_carrier_weight_describe(o.outputs, taps, o.inputs, o.bits, o.group, o.group > 0, &packed))
    return {};
  auto *memory = static_cast<uint8_t *>(
      std::aligned_alloc(64, (size_t)((packed.packed_bytes + 63) / 64 * 64)));
  auto *factor = static_cast<float *>(
      std::aligned_alloc(64, (size_t)((packed.factor_count * 4 + 63) / 64 * 64)));
  std::vector<int8_t> multiplier((size_t)packed.multiplier_bytes);
  std::memset(memory, 0, (size_t)packed.packed_bytes);
  std::memset(factor, 0, (size_t)packed.factor_count * 4);
  packed.packed = memory, packed.factor = factor, packed.multiplier = multiplier.data();
  const int8_t *multipliers = o.group ? w.multiplier.data() : nullptr;
  const auto multiplier_count = (int64_t)w.multiplier.size();
  const bool bad = cod_carrier_weight_pack(w.codes.data(), (int64_t)w.codes.size(), multipliers,
                                           multiplier_count, w.factor.data(),
                                           (int64_t)w.factor.size(), &packed, threads) ||
                   cod_carrier_conv(&input, &o.g, &packed, &output, threads);
  if (bad) y.assign(y.size(), -77.0f);
  if (o.bits == 4) {  // as files have them: the same panels
    const std::vector<uint8_t> before(memory, memory + packed.packed_bytes);
    const std::vector<uint8_t> pairs = nibbles(w.codes, o.outputs);
    std::memset(memory, 0, before.size());
    if (cod_carrier_weight_pack_nibbles(pairs.data(), (int64_t)pairs.size(), multipliers,
                                        multiplier_count, w.factor.data(), (int64_t)w.factor.size(),
                                        &packed, threads) ||
        std::memcmp(memory, before.data(), before.size()) != 0)
      y.assign(y.size(), -78.0f);
  }
  std::free(memory);
  std::free(factor);
  return y;
}

std::vector<float> naive(const Operator &o, const Bytes &x, const Weights &w) {
  const cod_geometry &g = o.g;
  const int64_t taps = (int64_t)g.kernel_h * g.kernel_w;
  std::vector<float> y;
  for (int64_t b = 0; b < g.batch; b++)
    for (int64_t oy = 0; oy < g.out_h; oy++)
      for (int64_t ox = 0; ox < g.out_w; ox++)
        for (int64_t n = 0; n < o.outputs; n++) {
          int64_t sum = 0, source = b * g.in_h * g.in_w;
          for (int64_t t = 0; t < taps; t++) {
            const int64_t iy = oy * g.stride_h - g.pad_h + t / g.kernel_w * g.dilation_h;
            const int64_t ix = ox * g.stride_w - g.pad_w + t % g.kernel_w * g.dilation_w;
            if (iy < 0 || iy >= g.in_h || ix < 0 || ix >= g.in_w) continue;
            source = (b * g.in_h + iy) * g.in_w + ix;
            const int8_t *row = &x.data[source * x.stride];
            if (o.depthwise) sum += row[n] * w.codes[n * taps + t];
            for (int64_t i = 0; i < o.inputs && !o.depthwise; i++)
              sum += row[i] * w.at(o, taps, n, t, i);
          }
          const float scale = x.unit[source / x.unit_rows] * w.factor[n];
          const float scaled = (float)(int32_t)sum * scale;
          y.push_back(scaled + w.bias[n]);
        }
  return y;
}

void check_products(const std::string &set) {
  std::vector<Operator> all;
  for (int bits : {4, 8})
    for (int64_t inputs : {3, 16, 40, 64, 200})
      for (int64_t outputs : {1, 37, 70})
        for (int group : {0, 16, 32})
          if (bits == 4 || !group) {
            const int own = group < inputs ? group : 0;
            all.push_back(
                {outputs, inputs, bits, own, convolution(1, 1, 45, 1, 1, 1, 0, 1), false});
            all.push_back({outputs, inputs, bits, own, convolution(2, 6, 7, 3, 3, 1, 1, 1), false});
            all.push_back({outputs, inputs, bits, own, convolution(1, 5, 5, 3, 3, 2, 4, 4), false});
          }
  for (int64_t channels : {5, 48})
    for (int stride : {1, 2})
      all.push_back({channels, 1, 8, 0, convolution(2, 9, 8, 3, 3, stride, 1, 1), true});
  for (int64_t channels : {3, 24, 49})  // taps side by side and one below the other, beside the map
    for (const cod_geometry &g :
         {convolution(2, 7, 9, 1, 9, 1, 4, 1), convolution(1, 9, 7, 9, 1, 1, 4, 1),
          convolution(1, 10, 11, 5, 6, 2, 3, 3), convolution(1, 3, 4, 7, 7, 1, 9, 3),
          convolution(1, 6, 5, 6, 2, 1, 20, 7), convolution(1, 30, 3, 5, 2, 3, 2, 1)})
      all.push_back({channels, 1, 8, 0, g, true});
  for (const Operator &o : all) {
    const int64_t taps = (int64_t)o.g.kernel_h * o.g.kernel_w, pixels = o.g.in_h * o.g.in_w;
    const Bytes x(o.g.batch * pixels, o.depthwise ? o.outputs : o.inputs, taps > 1 ? pixels : 1);
    const Weights w(o, taps);
    cod_select(set.c_str());
    const char *kind = o.depthwise ? " carrier depthwise "
                       : taps > 1  ? " carrier conv "
                                   : " carrier linear ";
    report(text(set, kind, o.inputs, " to ", o.outputs, ", ", o.bits, " bits, groups of ", o.group),
           differs_in_bits("y", product(o, x, w, 2), naive(o, x, w)));
  }
}

}  // namespace

void check_carriers(const std::string &set) {
  check_encoders(set);
  check_products(set);
  cod_select(set.c_str());
}
