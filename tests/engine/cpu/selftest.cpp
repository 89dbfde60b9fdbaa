// Self-test of the native engine without Python: for processors that only an emulator offers.
//
// "generic" is compared with naive loops in double, written here from the formulas; every other
// instruction set with "generic": the quantizer bit by bit, products to 1e-6. Inputs come from a
// counter, so that every machine sees the same. `--list` prints the available sets and stops.
#include "selftest.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

int passed = 0, failed = 0;

namespace {

// ---------------------------------------------------------------- quantizer

struct Quantized {
  std::vector<int8_t> codes;
  std::vector<int32_t> sums;
  std::vector<float> step, radius, x_hat;
  std::vector<uint8_t> active, infeasible;
  int64_t rows, channels, group, count, stride;

  Quantized(int64_t rows, int64_t channels, int64_t group)
      : rows(rows),
        channels(channels),
        group(group),
        count((channels + group - 1) / group),
        stride(count * group + 3) {  // longer than needed: the rest must come out as zeros
    codes.assign((size_t)(rows * stride), 77);
    sums.assign((size_t)(rows * count), 77);
    step.assign((size_t)(rows * count), 77), radius = step;
    active.assign((size_t)(rows * count), 77), infeasible = active;
    x_hat.assign((size_t)(rows * channels), 77);
  }
  cod_quantized view() {
    return {codes.data(),      stride,       step.data(), radius.data(), active.data(),
            infeasible.data(), x_hat.data(), sums.data()};
  }
};

using ::differs;

std::string differs(const Quantized &a, const Quantized &b) {
  for (const std::string &one :
       {differs("radius", a.radius, b.radius), differs("step", a.step, b.step),
        differs("codes", a.codes, b.codes), differs("sums", a.sums, b.sums),
        differs("active", a.active, b.active), differs("infeasible", a.infeasible, b.infeasible),
        differs("x_hat", a.x_hat, b.x_hat)})
    if (!one.empty()) return one;
  return "";
}

struct Setting {
  cod_quant_spec spec;
  std::string name;
};

std::vector<Setting> settings(int group, int bits) {
  std::vector<Setting> all;
  for (const char *kind : {"min", "literal", "guarded"})
    for (int use = 0; use < 8; use++) {
      cod_quant_spec s{};
      s.bits = bits, s.group = group;
      s.literal = !std::strcmp(kind, "literal"), s.guarded = !std::strcmp(kind, "guarded");
      s.use_percentile = use & 1, s.use_tau = use >> 1 & 1, s.use_zero_ratio = use >> 2;
      s.percentile = 0.95, s.tau = 1.0, s.zero_ratio = 0.2;
      all.push_back({s, text(kind, use & 1 ? " percentile" : "", use & 2 ? " C1" : "",
                             use & 4 ? " C2" : "")});
    }
  return all;
}

Quantized quantize(const std::vector<float> &x, int64_t rows, int64_t channels,
                   const cod_quant_spec &spec, bool transposed, int threads) {
  Quantized out(rows, channels, spec.group);
  const cod_rows in{x.data(), rows, channels, transposed ? 1 : channels, transposed ? rows : 1};
  const cod_quantized view = out.view();
  if (cod_quantize_groups(&in, &spec, &view, threads) != COD_OK) out.sums[0] = -12345;
  return out;
}

int rank_of(double share, size_t count) {
  return std::max(1, (int)std::ceil(share * (double)count - 1e-9));
}

double clipped_error(const std::vector<float> &v, float radius, int qmax) {
  const float step = std::max(radius / (float)qmax, COD_EPS);
  double total = 0;
  for (float x : v) {
    const float q = std::nearbyint(std::min(std::max(x, -radius), radius) / step);
    const double e = (double)(x - std::min(std::max(q, -qmax - 1.0f), (float)qmax) * step);
    total += e * e;
  }
  return total;
}

// The radius of one group from the formulas: base range, C1 (steps no longer than tau sigma), C2
// (at most a share zero_ratio falls into the zero bin), the guarded choice between them.
float naive_radius(std::vector<float> v, const cod_quant_spec &spec, int &active, int &infeasible) {
  const int qmax = (1 << (spec.bits - 1)) - 1;
  active = infeasible = 0;
  for (float x : v)
    if (!std::isfinite(x)) return kNan;
  if (spec.literal) v.resize((size_t)spec.group, 0.0f);  // to the letter: padding counts
  std::vector<float> sorted, evidence;
  for (float x : v) sorted.push_back(std::fabs(x));
  std::sort(sorted.begin(), sorted.end());
  for (float m : sorted)
    if (spec.literal || m > 0) evidence.push_back(m);
  const float base =
      spec.use_percentile ? sorted[rank_of(spec.percentile, sorted.size()) - 1] : sorted.back();
  float radius = base;
  const bool skip = spec.literal && !(spec.use_tau && spec.use_zero_ratio);
  auto bound_by = [&](double bound, int bit, int name) {
    if (!spec.literal && bound < qmax * 1e-8)
      infeasible |= bit;
    else if (bound < radius)
      radius = (float)bound, active = name;
  };
  if (spec.use_tau && !skip) {
    double mean = 0, squares = 0;
    for (float x : v) mean += (double)x / (double)v.size();
    for (float x : v) squares += ((double)x - mean) * ((double)x - mean);
    const double sigma = std::sqrt(squares / (double)v.size()) + COD_STD_EPS;
    bound_by(qmax * spec.tau * sigma, COD_INFEASIBLE_C1, COD_ACTIVE_C1);
  }
  if (spec.use_zero_ratio && !skip && !evidence.empty()) {
    const double margin = spec.literal ? 1.0 : COD_TIE_MARGIN;
    const double kth = (double)evidence[rank_of(spec.zero_ratio, evidence.size()) - 1];
    bound_by(2 * qmax * margin * kth, COD_INFEASIBLE_C2, COD_ACTIVE_C2);
  }
  if (spec.guarded && radius < base) {
    const float low = radius;
    double least = std::numeric_limits<double>::infinity();
    for (float fraction : {1.0f, 0.75f, 0.5f, 0.25f, 0.0f}) {
      float c = fraction == 1 ? low : fraction == 0 ? base : base + (low - base) * fraction;
      c = std::max(c, COD_EPS);
      const double error = clipped_error(v, c, qmax);
      if (error < least) least = error, radius = c;
    }
    if (radius > std::max(low, COD_EPS)) active = COD_ACTIVE_GUARDED;
  }
  return std::max(radius, COD_EPS);
}

// Codes, sums and values have to follow from the radius and step that came with them.
std::string inconsistent(const Quantized &q, const std::vector<float> &x, int bits,
                         const std::function<std::pair<float, float>(int64_t, int64_t)> &range) {
  const float qmax = (float)((1 << (bits - 1)) - 1);
  for (int64_t r = 0; r < q.rows; r++) {
    std::vector<int32_t> sums((size_t)q.count, 0);
    for (int64_t c = 0; c < q.stride; c++) {
      const int code = q.codes[r * q.stride + c];
      float want = 0.0f;
      if (c < q.channels) {
        const auto [radius, step] = range(r, c);
        const float value = x[r * q.channels + c];
        if (value == value && step == step)
          want = std::nearbyint(std::min(std::max(value, -radius), radius) / step);
        want = std::min(std::max(want, -qmax - 1.0f), qmax);
        if (!same(q.x_hat[r * q.channels + c], (float)code * step))
          return text("x_hat of row ", r, " channel ", c);
        sums[c / q.group] += code;
      }
      if ((float)code != want)
        return text("row ", r, " channel ", c, " has code ", code, ", expected ", want);
    }
    for (int64_t g = 0; g < q.count; g++)
      if (q.sums[r * q.count + g] != sums[g]) return text("sum of row ", r, " group ", g);
  }
  return "";
}

std::string against_naive(const Quantized &q, const std::vector<float> &x,
                          const cod_quant_spec &spec) {
  for (int64_t r = 0; r < q.rows; r++)
    for (int64_t g = 0; g < q.count; g++) {
      const float *row = &x[r * q.channels];
      const int64_t end = std::min(q.channels, (g + 1) * q.group), at = r * q.count + g;
      int active, infeasible;
      const float want = naive_radius({row + g * q.group, row + end}, spec, active, infeasible);
      const float got = q.radius[at],
                  step = std::max(got / (float)((1 << (spec.bits - 1)) - 1), COD_EPS);
      if (!same(got, want) && !(std::fabs(got - want) <= 2e-7f * want))
        return text("radius of row ", r, " group ", g, " is ", got, ", expected ", want);
      if (got != got) continue;
      if (q.step[at] != step) return text("step of row ", r, " group ", g);
      if (q.active[at] != active || q.infeasible[at] != infeasible)
        return text("row ", r, " group ", g, " reports ", +q.active[at], "/", +q.infeasible[at],
                    ", expected ", active, "/", infeasible);
    }
  return inconsistent(q, x, spec.bits, [&](int64_t r, int64_t c) {
    return std::make_pair(q.radius[r * q.count + c / q.group], q.step[r * q.count + c / q.group]);
  });
}

void check_groups(const std::string &set) {
  constexpr int64_t rows = 21;
  for (int group : {12, 16, 32, 64, 128})
    for (int bits : {4, 8}) {
      std::string trouble;
      int count = 0;
      for (const Setting &setting : settings(group, bits))
        for (int64_t channels : {2 * group, 40, 7}) {
          const bool transposed = channels == 40;
          auto x = difficult(rows, channels, (uint64_t)(group * channels));
          auto stored = x;
          if (transposed)
            for (int64_t i = 0; i < rows * channels; i++)
              stored[i % channels * rows + i / channels] = x[i];
          cod_select("generic");
          const Quantized generic = quantize(stored, rows, channels, setting.spec, transposed, 1);
          std::string one;
          if (set == "generic") {
            one = against_naive(generic, x, setting.spec);
          } else {
            cod_select(set.c_str());
            one = differs(quantize(stored, rows, channels, setting.spec, transposed, 1), generic);
          }
          if (!one.empty() && trouble.empty())
            trouble = text(setting.name, ", ", channels, " channels: ", one);
          count++;
        }
      report(text(set, " quantize_groups group ", group, " bits ", bits, " (", count, " cases)"),
             trouble);
    }
}

void check_groups_pre_and_threads(const std::string &set) {
  constexpr int64_t rows = 700, channels = 100;
  const auto x = difficult(rows, channels, 5);
  for (int pre : {COD_PRE_NONE, COD_PRE_GELU, COD_PRE_RELU}) {
    cod_quant_spec spec = settings(32, 4).back().spec;
    spec.pre = pre;
    cod_select("generic");
    const Quantized generic = quantize(x, rows, channels, spec, false, 1);
    cod_select(set.c_str());
    const Quantized one = quantize(x, rows, channels, spec, false, 1);
    const Quantized three = quantize(x, rows, channels, spec, false, 3);
    report(text(set, " quantize_groups pre ", pre, " as generic"), differs(one, generic));
    report(text(set, " quantize_groups pre ", pre, " threads 1 and 3"), differs(three, one));
    if (set != "generic") continue;
    auto y = x;
    for (float &v : y) {
      if (pre == COD_PRE_GELU) v = (float)(0.5 * v * (1 + std::erf(v * std::sqrt(0.5))));
      if (pre == COD_PRE_RELU) v = v < 0 ? 0.0f : v;
    }
    std::string trouble;
    for (int64_t i = 0; i < rows * channels && trouble.empty(); i++) {
      const float step = one.step[i / channels * one.count + i % channels / 32];
      const float radius = one.radius[i / channels * one.count + i % channels / 32];
      const float want = std::min(std::max(y[i], -radius), radius);
      if (step == step &&
          !(std::fabs(one.x_hat[i] - want) <= 0.5f * step + 2e-6f * (1 + std::fabs(x[i]))))
        trouble = text("value ", i, " is ", one.x_hat[i], ", expected about ", want);
    }
    report(text(set, " quantize_groups pre ", pre, " against naive"), trouble);
  }
}

void check_fixed(const std::string &set) {
  constexpr int64_t rows = 300, channels = 101;
  const auto x = difficult(rows, channels, 11);
  for (int bits : {2, 4, 8})
    for (int each : {0, 1})
      for (float size : {7.0f, 0.3f, 1e-7f, kNan}) {
        const float qmax = (float)((1 << (bits - 1)) - 1);
        std::vector<float> radius, step;
        for (int64_t c = 0; c < (each ? channels : 1); c++) {
          radius.push_back(each ? size * (1.0f + 0.01f * (float)c) : size);
          step.push_back(radius[c] != radius[c] ? kNan : std::max(radius[c] / qmax, COD_EPS));
        }
        auto run = [&](const std::string &isa, int threads) {
          cod_select(isa.c_str());
          Quantized q(rows, channels, 32);
          const cod_rows in{x.data(), rows, channels, channels, 1};
          const cod_quantized view = q.view();
          if (cod_quantize_fixed(&in, bits, radius.data(), step.data(), each, 32, 0, &view,
                                 threads))
            q.sums[0] = -12345;
          return q;
        };
        const Quantized one = run(set, 1), three = run(set, 3);
        std::string trouble =
            set == "generic"
                ? inconsistent(one, x, bits,
                               [&](int64_t, int64_t c) {
                                 return std::make_pair(radius[each ? c : 0], step[each ? c : 0]);
                               })
                : differs(one, run("generic", 1));
        if (trouble.empty() && !differs(three, one).empty())
          trouble = "threads: " + differs(three, one);
        report(text(set, " quantize_fixed bits ", bits, each ? " per channel" : " per tensor",
                    " radius ", size),
               trouble);
      }
}

void check_absmax(const std::string &set) {
  cod_select(set.c_str());
  constexpr int64_t rows = 100, channels = 37;
  const auto x = difficult(rows, channels, 3);
  std::string trouble;
  for (int64_t first : {0, 12})  // with and without the rows that are not finite
    for (int each : {0, 1})
      for (int threads : {1, 3}) {
        std::vector<float> want((size_t)(each ? channels : 1), 0.0f), got(want.size(), 77.0f);
        for (int64_t i = first * channels; i < rows * channels; i++) {
          float &w = want[each ? i % channels : 0];
          w = std::isfinite(x[i]) && w == w ? std::max(w, std::fabs(x[i])) : kNan;
        }
        const cod_rows in{&x[first * channels], rows - first, channels, channels, 1};
        if (cod_absmax(&in, each, got.data(), threads) != COD_OK) trouble = "refused";
        for (size_t i = 0; i < want.size(); i++)
          if (!same(got[i], want[i]))
            trouble = text("[", i, "] is ", got[i], ", expected ", want[i]);
      }
  report(text(set, " absmax"), trouble);
}

// ---------------------------------------------------------------- products

struct Product {
  const char *name;
  cod_geometry geometry;
  int inputs, outputs, group, weight_group, bits, step_mode, bias, activation;
  bool extreme;        // every code at the end of its range: do the sums hold?
  bool exact = false;  // scales of weight groups have few digits, outputs factors
};

cod_geometry linear(int rows) { return convolution(1, rows, 1, 1, 1, 1, 0, 1); }

// The input row of a tap, or -1 in the padding.
int64_t source_of(const cod_geometry &g, int64_t row, int64_t tap) {
  const int64_t b = row / (g.out_h * g.out_w), oy = row / g.out_w % g.out_h, ox = row % g.out_w;
  const int64_t y = oy * g.stride_h + tap / g.kernel_w * g.dilation_h - g.pad_h;
  const int64_t x = ox * g.stride_w + tap % g.kernel_w * g.dilation_w - g.pad_w;
  return y < 0 || x < 0 || y >= g.in_h || x >= g.in_w ? -1 : (b * g.in_h + y) * g.in_w + x;
}

double activated(double x, int activation) {
  if (activation == COD_ACT_GELU) return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
  return activation == COD_ACT_RELU && x < 0 ? 0 : x;
}

constexpr float kUntouched = 12345.0f;

struct Data {
  Product p;
  int64_t rows, positions, taps, groups, stride, row_stride, per_tap;
  std::vector<int8_t> codes, weights;
  std::vector<float> step, scale, factor, bias;
  std::vector<int32_t> sums;

  explicit Data(const Product &p) : p(p) {
    Random random{(uint64_t)(p.inputs * 1000 + p.outputs)};
    const cod_geometry &g = p.geometry;
    rows = g.batch * g.out_h * g.out_w, positions = g.batch * g.in_h * g.in_w;
    taps = g.kernel_h * g.kernel_w, groups = (p.inputs + p.group - 1) / p.group;
    stride = groups * p.group + 5, row_stride = p.outputs + 2;
    per_tap = p.weight_group ? (p.inputs + p.weight_group - 1) / p.weight_group : 1;
    const int levels = 1 << p.bits;
    codes.assign((size_t)(positions * stride), 0);
    sums.assign((size_t)(positions * groups), 0);
    for (int64_t i = 0; i < positions; i++)
      for (int64_t c = 0; c < p.inputs; c++) {
        const int code = p.extreme ? -levels / 2 : random.below(levels) - levels / 2;
        codes[i * stride + c] = (int8_t)code, sums[i * groups + c / p.group] += code;
      }
    for (int64_t i = 0; i < (p.step_mode ? positions * groups : 1); i++)
      step.push_back(0.01f + random.uniform());
    for (int64_t i = 0; i < p.outputs * taps * p.inputs; i++)
      weights.push_back((int8_t)(p.extreme ? (i / p.inputs % 2 ? 7 : -8) : random.below(16) - 8));
    for (int64_t i = 0; i < p.outputs * (p.weight_group ? taps * per_tap : 1); i++)
      scale.push_back(p.exact
                          ? (float)(random.below(16) - 8) * std::ldexp(1.0f, random.below(9) - 7)
                          : 0.01f + 0.05f * random.uniform());
    for (int64_t i = 0; i < p.outputs; i++)
      factor.push_back(p.exact ? 0.1f + random.uniform() : 1.0f);
    for (int64_t i = 0; i < p.outputs; i++) bias.push_back(random.bell());
  }

  // y by the formula, and the sum of its terms' magnitudes, which its error is measured by.
  void naive(std::vector<double> &y, std::vector<double> &size) const {
    y.assign((size_t)(rows * p.outputs), 0), size = y;
    for (int64_t r = 0; r < rows; r++)
      for (int64_t o = 0; o < p.outputs; o++) {
        double total = p.bias ? (double)bias[o] : 0.0, magnitude = std::fabs(total);
        for (int64_t t = 0; t < taps; t++) {
          const int64_t from = source_of(p.geometry, r, t);
          for (int64_t i = 0; i < p.inputs && from >= 0; i++) {
            const double s = p.weight_group ? scale[(o * taps + t) * per_tap + i / p.weight_group] *
                                                  (double)factor[o]
                                            : scale[o];
            const double sx = step[p.step_mode ? from * groups + i / p.group : 0];
            const double term =
                s * sx * codes[from * stride + i] * weights[(o * taps + t) * p.inputs + i];
            total += term, magnitude += std::fabs(term);
          }
        }
        y[r * p.outputs + o] = activated(total, p.activation), size[r * p.outputs + o] = magnitude;
      }
  }

  // The weights in the form of the instruction set in use.
  struct Packed {
    explicit Packed(const Data &data) {
      const auto &p = data.p;
      cod_weight_describe(p.outputs, data.taps, p.inputs, p.group, p.weight_group, &weight);
      weight.packed = place(bytes, weight.packed_bytes);
      weight.scales = reinterpret_cast<float *>(place(scales, weight.scale_count * 4));
      cod_weight_pack(data.weights.data(), data.scale.data(),
                      p.exact ? data.factor.data() : nullptr, &weight, 2);
    }
    static uint8_t *place(std::vector<uint8_t> &memory, int64_t size) {
      memory.assign((size_t)size + 64, 0);
      return memory.data() + (64 - (uintptr_t)memory.data() % 64) % 64;
    }
    std::vector<uint8_t> bytes, scales;
    cod_weight weight{};
  };

  std::vector<float> run(const std::string &set, int threads) const {
    cod_select(set.c_str());
    std::vector<float> y((size_t)(rows * row_stride), kUntouched);
    const Packed w(*this);
    const cod_input in{codes.data(), stride,      step.data(), sums.data(),
                       groups,       p.step_mode, p.bits > 5};
    const cod_output out{y.data(), row_stride, p.bias ? bias.data() : nullptr, p.activation};
    if (cod_conv(&in, &p.geometry, &w.weight, &out, threads) != COD_OK) y[0] = kNan;
    if ((w.weight.exact != 0) != p.exact) y[0] = kNan;
    return y;
  }
};

// got and want are rows of row_stride; only the first `outputs` of each may have been written.
template <typename T>
std::string far(const std::vector<float> &got, const T &want, const std::vector<double> &size,
                int64_t outputs, int64_t row_stride) {
  for (int64_t i = 0; i < (int64_t)got.size(); i++) {
    const int64_t r = i / row_stride, o = i % row_stride;
    if (o >= outputs && got[i] != kUntouched) return text("row ", r, " is written past its end");
    if (o >= outputs) continue;
    const double y = want(r, o), error = std::fabs(got[i] - y);
    if (!(error <= 1e-6 * size[r * outputs + o] + 1e-12))
      return text("row ", r, " output ", o, " is ", got[i], ", expected ", y);
  }
  return "";
}

std::string compare(const std::string &set, const std::vector<float> &got,
                    const std::function<std::vector<float>()> &generic,
                    const std::vector<double> &y, const std::vector<double> &size, int64_t outputs,
                    int64_t row_stride) {
  if (set == "generic")
    return far(
        got, [&](int64_t r, int64_t o) { return y[r * outputs + o]; }, size, outputs, row_stride);
  const std::vector<float> other = generic();
  return far(
      got, [&](int64_t r, int64_t o) { return (double)other[r * row_stride + o]; }, size, outputs,
      row_stride);
}

void check_products(const std::string &set) {
  const int none = COD_ACT_NONE, gelu = COD_ACT_GELU, relu = COD_ACT_RELU;
  const Product products[] = {
      // name, geometry, inputs, outputs, group, weight group, bits, step mode, bias, activation
      {"linear 1 row", linear(1), 7, 1, 4, 0, 4, 1, 0, none, false},
      {"linear group 8", linear(5), 20, 7, 8, 0, 4, 1, 1, none, false},
      {"linear group 12", linear(13), 40, 17, 12, 0, 4, 1, 1, gelu, false},
      {"linear group 16", linear(97), 100, 33, 16, 0, 4, 1, 1, relu, false},
      {"linear group 20", linear(31), 50, 40, 20, 0, 8, 1, 0, none, false},
      {"linear group 32", linear(200), 96, 70, 32, 0, 4, 1, 1, none, false},
      {"linear group 64", linear(50), 130, 65, 64, 0, 8, 1, 1, gelu, false},
      {"linear group 128", linear(50), 256, 31, 128, 0, 8, 1, 0, none, false},
      {"linear one step", linear(101), 96, 37, 32, 0, 4, 0, 1, none, false},
      {"linear one step wide", linear(101), 70, 37, 32, 0, 8, 0, 1, relu, false},
      {"linear weight groups", linear(67), 96, 37, 32, 32, 4, 1, 1, none, false},
      {"linear weight groups of two", linear(67), 160, 37, 32, 64, 8, 1, 1, gelu, false},
      {"linear weight groups one step", linear(40), 100, 37, 16, 32, 4, 0, 0, none, false},
      {"linear extreme 4 bits", linear(9), 128, 33, 128, 0, 4, 1, 0, none, true},
      {"linear extreme 8 bits", linear(9), 256, 33, 128, 0, 8, 1, 0, none, true},
      {"conv 3x3", convolution(2, 9, 7, 3, 3, 1, 1, 1), 40, 19, 32, 0, 4, 1, 1, relu, false},
      {"conv 3x3 stride 2", convolution(1, 11, 13, 3, 3, 2, 1, 1), 33, 35, 16, 0, 4, 1, 1, none,
       false},
      {"conv 3x3 dilation 2", convolution(1, 10, 9, 3, 3, 1, 2, 2), 64, 16, 64, 0, 8, 1, 0, gelu,
       false},
      {"conv 5x3 no padding", convolution(2, 8, 8, 5, 3, 1, 0, 1), 12, 9, 12, 0, 4, 1, 1, none,
       false},
      {"conv 1x1 stride 2", convolution(1, 9, 9, 1, 1, 2, 0, 1), 32, 24, 32, 0, 4, 1, 0, none,
       false},
      {"conv 7x7 stride 4 one step", convolution(1, 21, 17, 7, 7, 4, 3, 1), 3, 18, 4, 0, 8, 0, 1,
       none, false},
      {"conv 3x3 weight groups", convolution(1, 7, 7, 3, 3, 2, 1, 1), 96, 20, 32, 32, 4, 1, 1, none,
       false},
      {"linear exact scales", linear(67), 1100, 37, 32, 32, 4, 1, 1, none, false, true},
      {"linear exact scales group 16", linear(40), 100, 70, 16, 32, 8, 1, 1, gelu, false, true},
      {"linear exact scales extreme", linear(9), 8192, 33, 4096, 4096, 8, 1, 0, none, true, true},
      {"conv 3x3 exact scales", convolution(1, 7, 7, 3, 3, 2, 1, 1), 96, 20, 32, 32, 4, 1, 1, none,
       false, true},
      {"conv 3x3 exact scales far taps", convolution(1, 5, 5, 3, 3, 1, 8, 8), 64, 40, 32, 32, 4, 1,
       1, none, false, true},
  };
  for (const Product &p : products) {
    const Data data(p);
    std::vector<double> y, size;
    data.naive(y, size);
    const std::vector<float> one = data.run(set, 1), three = data.run(set, 3);
    std::string trouble = compare(
        set, one, [&] { return data.run("generic", 1); }, y, size, p.outputs, data.row_stride);
    if (trouble.empty() && std::memcmp(one.data(), three.data(), one.size() * sizeof(float)))
      trouble = "threads 1 and 3 differ";
    report(text(set, " ", p.name), trouble);
  }
}

// pixels: steps belong to pixels of a channel instead of channels of a pixel.
void check_depthwise(const std::string &set, bool pixels) {
  const cod_geometry shapes[] = {
      convolution(2, 9, 7, 3, 3, 1, 1, 1), convolution(1, 11, 13, 5, 3, 2, 2, 1),
      convolution(1, 12, 12, 3, 3, 1, 2, 2), convolution(1, 14, 15, 7, 7, 1, 3, 1)};
  for (const cod_geometry &g : shapes)
    for (int64_t channels : {1, 19, 64, 330})
      for (int activation : {COD_ACT_NONE, COD_ACT_GELU, COD_ACT_RELU, COD_ACT_GATED_GELU}) {
        const bool gated = activation == COD_ACT_GATED_GELU;
        if (gated && channels % 2) continue;
        const int64_t rows = g.batch * g.out_h * g.out_w, taps = g.kernel_h * g.kernel_w;
        const int64_t positions = g.batch * g.in_h * g.in_w,
                      outputs = gated ? channels / 2 : channels;
        const int64_t row_stride = outputs + 1;
        Random random{(uint64_t)(rows + channels)};
        // steps for groups of 12 (no multiple of any vector), of 32, or inside the weight
        const int group = activation == COD_ACT_GELU ? 12 : 32;
        const int step_mode = pixels ? 2 : activation != COD_ACT_RELU;
        const int64_t image = g.in_h * g.in_w,
                      groups = ((pixels ? image : channels) + group - 1) / group;
        std::vector<int8_t> codes;
        std::vector<float> step, w, bias;
        for (int64_t i = 0; i < positions * channels; i++)
          codes.push_back((int8_t)(random.bell() * 3));
        for (int64_t i = 0; i < (pixels ? g.batch * channels : positions) * groups; i++)
          step.push_back(std::fabs(random.bell()));
        for (int64_t i = 0; i < taps * channels; i++) w.push_back(random.bell());
        for (int64_t i = 0; i < channels; i++) bias.push_back(random.bell());
        const bool biased = activation != COD_ACT_RELU;
        auto run = [&](const std::string &isa, int threads) {
          cod_select(isa.c_str());
          std::vector<float> y((size_t)(rows * row_stride), kUntouched);
          const cod_input in{codes.data(), channels, step.data(), nullptr, groups, step_mode, 0};
          const cod_output out{y.data(), row_stride, biased ? bias.data() : nullptr, activation};
          if (cod_depthwise(&in, &g, channels, group, w.data(), &out, threads) != COD_OK)
            y[0] = kNan;
          return y;
        };
        std::vector<double> y((size_t)(rows * channels)), size = y;
        for (int64_t i = 0; i < rows * channels; i++) {
          double total = biased ? (double)bias[i % channels] : 0.0, magnitude = std::fabs(total);
          for (int64_t t = 0; t < taps; t++) {
            const int64_t from = source_of(g, i / channels, t);
            if (from < 0) continue;
            const int64_t c = i % channels;
            const int64_t at = pixels
                                   ? (from / image * groups + from % image / group) * channels + c
                                   : from * groups + c / group;
            const double factor = step_mode ? (double)step[at] : 1.0;
            const double term = codes[from * channels + c] * factor * w[t * channels + c];
            total += term, magnitude += std::fabs(term);
          }
          y[i] = activated(total, activation), size[i] = magnitude;
        }
        for (int64_t i = 0; i < rows * outputs && gated; i++) {
          const int64_t gate = i / outputs * channels + i % outputs, value = gate + outputs;
          const double left = activated(y[gate], COD_ACT_GELU), right = y[value];
          // both factors are off by a little of their own size
          const double off = size[gate] * std::fabs(right) + size[value] * std::fabs(left);
          y[i] = left * right, size[i] = off + size[gate] * size[value] * 1e-6;
        }
        const std::vector<float> one = run(set, 1), three = run(set, 3);
        std::string trouble =
            compare(set, one, [&] { return run("generic", 1); }, y, size, outputs, row_stride);
        if (trouble.empty() && std::memcmp(one.data(), three.data(), one.size() * sizeof(float)))
          trouble = "threads 1 and 3 differ";
        report(text(set, pixels ? " depthwise of pixel groups " : " depthwise ", g.kernel_h, "x",
                    g.kernel_w, " dilation ", g.dilation_h, " stride ", g.stride_h, " channels ",
                    channels, " activation ", activation),
               trouble);
      }
}

// What cannot be computed has to be refused, not computed wrongly.
void check_refusals(const std::string &set) {
  cod_select(set.c_str());
  const Data data({"", linear(3), 32, 8, 32, 0, 4, 1, 0, COD_ACT_NONE, false});
  const Data::Packed packed(data);
  const cod_weight *w = &packed.weight;
  std::vector<float> y(64);
  cod_input in{data.codes.data(), 16, data.step.data(), data.sums.data(), 1, 1, 0};
  const cod_output out{y.data(), 8, nullptr, COD_ACT_NONE};
  const cod_geometry one = linear(3), nine = convolution(1, 3, 3, 3, 3, 1, 1, 1);
  report(text(set, " refuses rows shorter than the weights"),
         cod_conv(&in, &one, w, &out, 1) == COD_BAD_ARGUMENT ? "" : "accepted");
  in.code_stride = data.stride, in.row_groups = 0;
  report(text(set, " refuses fewer steps than groups"),
         cod_conv(&in, &one, w, &out, 1) == COD_BAD_ARGUMENT ? "" : "accepted");
  in.row_groups = 1;
  report(text(set, " refuses a kernel of another size"),
         cod_conv(&in, &nine, w, &out, 1) == COD_BAD_ARGUMENT ? "" : "accepted");
  const std::vector<float> taps(32, 1.0f);
  const cod_input stepless{data.codes.data(), data.stride, nullptr, nullptr, 1, 2, 0};
  const cod_output wide{y.data(), 32, nullptr, COD_ACT_NONE};
  report(text(set, " refuses pixel groups without steps"),
         cod_depthwise(&stepless, &one, 32, 32, taps.data(), &wide, 1) == COD_BAD_ARGUMENT
             ? ""
             : "accepted");
  cod_weight other{}, askew = *w;
  askew.packed++;
  report(text(set, " refuses groups that are not whole quads"),
         cod_weight_describe(8, 1, 32, 6, 0, &other) == COD_BAD_ARGUMENT ? "" : "accepted");
  report(text(set, " refuses weights that lie askew"),
         cod_weight_pack(data.weights.data(), data.scale.data(), nullptr, &askew, 1) ==
                 COD_BAD_ARGUMENT
             ? ""
             : "accepted");
}

}  // namespace

int main(int argc, char **argv) {
  std::printf("sets: %s\n", cod_available());
  if (argc > 1 && !std::strcmp(argv[1], "--list")) return 0;
  std::istringstream names(cod_available());
  std::vector<std::string> sets;
  for (std::string name; names >> name;) sets.push_back(name);
  report("an unknown set is refused", cod_select("abacus") == COD_NO_KERNEL ? "" : "accepted");
  for (const std::string &set : sets) {
    check_groups(set);
    check_groups_pre_and_threads(set);
    check_fixed(set);
    check_absmax(set);
    check_products(set);
    check_depthwise(set, false);
    check_depthwise(set, true);
    check_refusals(set);
    check_searched(set);
    check_carriers(set);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed ? 1 : 0;
}
