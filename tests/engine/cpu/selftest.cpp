// Self-test of the native engine without Python: for processors that only an emulator offers.
//
// "generic" is compared with naive loops in double, written here from the formulas; every other
// instruction set with "generic", bit by bit. Inputs come from a counter, so that every machine
// sees the same. `--list` prints the available sets and stops.
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
    return {codes.data(),          stride,
            step.data(),           radius.data(),
            active.data(),         infeasible.data(),
            x_hat.data(),          sums.data(),
            (int64_t)codes.size(), (int64_t)step.size(),
            (int64_t)x_hat.size()};
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
  const cod_rows in{
      x.data(), rows, channels, transposed ? 1 : channels, transposed ? rows : 1, rows * channels};
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
        const cod_rows in{&x[first * channels],     rows - first, channels, channels, 1,
                          (rows - first) * channels};
        if (cod_absmax(&in, each, got.data(), (int64_t)got.size(), threads) != COD_OK)
          trouble = "refused";
        for (size_t i = 0; i < want.size(); i++)
          if (!same(got[i], want[i]))
            trouble = text("[", i, "] is ", got[i], ", expected ", want[i]);
      }
  report(text(set, " absmax"), trouble);
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
    check_absmax(set);
    check_carriers(set);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed ? 1 : 0;
}
