// Self-test of groups on searched grids (cod-tdq-plus): candidates from the formulas, losses in
// double.
//
// Every set has to leave, for every group, the codes of one of its candidates, and of none whose
// loss is above the least. "generic" has to agree but for groups whose candidates tie.
#include <cstring>

#include "selftest.h"

namespace {

struct Case {
  bool pixels;
  int bits, group, trials, zero_point;
  float zero_weight;
  int64_t images, positions, channels;
  char layout;  // 'p'lain, 't'ransposed, 'g'aps between the rows
  float unit;   // of the scales; 0: each image's own

  int64_t size() const { return std::min<int64_t>(group, pixels ? positions : channels); }
  int64_t count() const { return ((pixels ? positions : channels) + size() - 1) / size(); }
  int64_t lines() const { return pixels ? channels : positions; }  // that an image has
};

// The second image has values that are not finite, the third only ordinary ones.
std::vector<float> images_of(const Case &c) {
  std::vector<float> x;
  const int64_t lines = c.lines(), length = c.pixels ? c.positions : c.channels;
  for (int64_t image = 0; image < c.images; image++) {
    std::vector<float> one = difficult(lines + 12, length, (uint64_t)(lines * length + image));
    if (image == 2) one.erase(one.begin(), one.begin() + 12 * length);
    for (int64_t i = 0; i < lines * length; i++) {
      const int64_t from = c.pixels ? i % lines * length + i / lines : i;
      x.push_back(image == 1 || std::isfinite(one[from]) ? one[from] : 0.25f);
    }
  }
  if (c.images > 1) x[c.positions * c.channels + c.positions * c.channels / 2] = kNan;
  return x;
}

struct Searched {
  std::vector<int8_t> codes;
  std::vector<int32_t> sums;
  std::vector<float> step, x_hat;
  int64_t stride;

  explicit Searched(const Case &c) {
    const int64_t rows = c.images * c.positions;
    // one group may have more room than it needs: the rest must come out as zeros
    stride = c.pixels ? c.channels + 3 : c.count() * c.size() + (c.count() == 1 ? 2 : 0);
    codes.assign((size_t)(rows * stride), 77), x_hat.assign((size_t)(rows * c.channels), 77);
    step.assign((size_t)(c.pixels ? c.images * c.count() * c.channels : rows * c.count()), 77);
    sums.assign((size_t)(c.pixels ? 0 : rows * c.count()), 77);
  }
  bool operator==(const Searched &other) const {
    return codes == other.codes && sums == other.sums &&
           differs("step", step, other.step).empty() && differs("", x_hat, other.x_hat).empty();
  }
};

Searched search(const std::string &set, const Case &c, const std::vector<float> &x,
                const cod_transform &transform, int threads, bool only_values = false) {
  cod_select(set.c_str());
  const int64_t rows = c.images * c.positions, pitch = c.channels + (c.layout == 'g' ? 5 : 0);
  std::vector<float> stored((size_t)(rows * pitch), kNan);  // gaps must not be read
  for (int64_t i = 0; i < rows * c.channels; i++) {
    const int64_t row = i / c.channels, channel = i % c.channels;
    stored[c.layout == 't' ? channel * rows + row : row * pitch + channel] = x[i];
  }
  const cod_rows in{stored.data(), rows, c.channels, c.layout == 't' ? 1 : pitch,
                    c.layout == 't' ? rows : 1};
  const cod_search_spec spec{c.bits,        c.group, c.trials, c.zero_point,
                             c.zero_weight, c.unit,  transform};
  Searched out(c);
  cod_quantized view{
      out.codes.data(), out.stride, out.step.data(),  nullptr,
      nullptr,          nullptr,    out.x_hat.data(), c.pixels ? nullptr : out.sums.data()};
  if (only_values) view.codes = nullptr, view.step = nullptr, view.sums = nullptr;
  const auto run = c.pixels ? cod_search_pixels : cod_search_tokens;
  if (run(&in, c.images, &spec, &view, threads) != COD_OK)
    out.x_hat.assign(out.x_hat.size(), 12345);
  return out;
}

float e4m3(int code) {
  return code < 8 ? std::ldexp((float)code, -9)
                  : std::ldexp(1.0f + (float)(code % 8) / 8, code / 8 - 7);
}

// The grids of one group, from the formulas.
struct Group {
  const Case &c;
  std::vector<float> v;  // a short group repeats its last value
  float low, high;

  Group(const Case &c, std::vector<float> values) : c(c), v(std::move(values)) {
    low = *std::min_element(v.begin(), v.end()), high = *std::max_element(v.begin(), v.end());
  }
  float levels() const { return (float)((1 << c.bits) - 1); }
  float full_step() const {
    if (c.zero_point == COD_ZERO_WIDE)
      return std::max((high - low) / levels(), std::max(low / 112.0f, low / -127.0f));
    const float below = std::min(low, 0.0f), above = std::max(high, 0.0f);
    return (c.zero_point == COD_ZERO_NONE ? std::max(-below, above) * 2 : above - below) / levels();
  }

  struct Grid {
    float step, zero;
    double loss;
  };
  float code(float x, const Grid &grid) const {
    return std::min(std::max(std::nearbyint(x / grid.step), -grid.zero), levels() - grid.zero);
  }
  std::vector<Grid> candidates(float unit) const {
    int scale = 1;
    const float full = c.unit > 0 ? std::min(full_step(), 448 * c.unit) : full_step();
    while (scale < 126 && e4m3(scale) < full / unit * 0.999999f) scale++;
    const float start = c.zero_point == COD_ZERO_NONE ? full * levels() / -2 : low;
    const float inside = std::nearbyint(-start / (e4m3(scale) * unit));
    std::vector<Grid> all;
    for (int t = 0; t < c.trials; t++, scale = std::max(scale - 1, 1)) {
      Grid grid{e4m3(scale) * unit, std::min(std::max(inside, 0.0f), levels()), 0};
      if (c.zero_point == COD_ZERO_WIDE) {
        const float middle = std::nearbyint(levels() / 2 - (low + high) / (2 * grid.step));
        grid.zero = std::min(std::max(middle, -112.0f), 127.0f);
      }
      for (float x : v) {
        const double q = code(x, grid), error = x - q * grid.step;
        grid.loss += error * error * (q == 0 ? 1.0 + c.zero_weight : 1.0);
      }
      all.push_back(grid);
    }
    return all;
  }

  // Whether codes under a step are those of a candidate that has the least loss.
  std::string wrong(const std::vector<int8_t> &codes, float step, float unit) const {
    const std::vector<Grid> all = candidates(unit);
    double least = all[0].loss, found = -1;
    for (const Grid &grid : all) least = std::min(least, grid.loss);
    for (const Grid &grid : all) {
      bool equal = grid.step == step;
      for (size_t i = 0; i < codes.size() && equal; i++)
        equal = code(v[i], grid) == (float)codes[i];
      if (equal && (found < 0 || grid.loss < found)) found = grid.loss;
    }
    if (found < 0) return text("has codes of no candidate, step ", step, ", first ", all[0].step);
    // every error may be off by two roundings of a value, which its square doubles
    const double off =
        1.2e-7 * std::max(std::fabs(low), std::fabs(high)) * std::sqrt((double)v.size());
    if (found <= least * (1 + 2e-5) + 2 * off * std::sqrt(least) + off * off) return "";
    return text("has loss ", found, ", the least is ", least);
  }
};

// Values of group g of line l of an image, and where its codes are.
struct Place {
  std::vector<float> v;
  std::vector<int8_t> codes;
  float step;
};
Place place_of(const Case &c, const std::vector<float> &x, const Searched &out, int64_t image,
               int64_t line, int64_t g) {
  Place place;
  const int64_t size = c.size(), length = c.pixels ? c.positions : c.channels;
  for (int64_t i = g * size; i < (g + 1) * size; i++) {
    const int64_t at = std::min(i, length - 1);
    const int64_t row = image * c.positions + (c.pixels ? at : line),
                  channel = c.pixels ? line : at;
    place.v.push_back(x[row * c.channels + channel]);
    if (i < length) place.codes.push_back(out.codes[row * out.stride + channel]);
  }
  place.step = c.pixels ? out.step[(image * c.count() + g) * c.channels + line]
                        : out.step[(image * c.positions + line) * c.count() + g];
  return place;
}

// x: what is quantized, after any transform.
std::string against_formulas(const Case &c, const std::vector<float> &x, const Searched &out) {
  for (int64_t image = 0; image < c.images; image++) {
    bool finite = true;
    float largest = 0;
    auto each = [&](const auto &visit) {
      for (int64_t line = 0; line < c.lines(); line++)
        for (int64_t g = 0; g < c.count(); g++) visit(place_of(c, x, out, image, line, g), line, g);
    };
    each([&](const Place &place, int64_t, int64_t) {
      for (float v : place.v) finite = finite && std::isfinite(v);
      if (finite) largest = std::max(largest, Group(c, place.v).full_step());
    });
    const float unit = c.unit > 0 ? c.unit : std::max(largest / 448.0f, 1e-30f);
    std::string trouble;
    each([&](const Place &place, int64_t line, int64_t g) {
      std::string one;
      bool own = finite;
      if (c.unit > 0) {  // only the group itself counts
        own = true;
        for (float v : place.v) own = own && std::isfinite(v);
      }
      if (own) {
        one = Group(c, place.v).wrong(place.codes, place.step, unit);
      } else {
        if (place.step == place.step) one = "has a step";
        for (int8_t code : place.codes)
          if (code) one = "has codes";
      }
      if (!one.empty() && trouble.empty())
        trouble = text("image ", image, " line ", line, " group ", g, " ", one);
    });
    if (!trouble.empty()) return trouble;
  }
  return "";
}

// Sums and values have to follow from the codes and steps that came with them.
std::string inconsistent(const Case &c, const Searched &out) {
  const int64_t count = c.count(), size = c.size();
  for (int64_t row = 0; row < c.images * c.positions; row++) {
    std::vector<int32_t> sums((size_t)count, 0);
    for (int64_t i = 0; i < out.stride; i++) {
      const int8_t code = out.codes[row * out.stride + i];
      if (i >= c.channels && code) return text("row ", row, " has a code past its end");
      if (i >= c.channels) continue;
      const int64_t image = row / c.positions, pixel = row % c.positions;
      const float step = c.pixels ? out.step[(image * count + pixel / size) * c.channels + i]
                                  : out.step[row * count + i / size];
      if (!same(out.x_hat[row * c.channels + i], (float)code * step))
        return text("x_hat of row ", row, " channel ", i);
      if (!c.pixels) sums[i / size] += code;
    }
    for (int64_t g = 0; g < count && !c.pixels; g++)
      if (out.sums[row * count + g] != sums[g]) return text("sum of row ", row, " group ", g);
  }
  return "";
}

// Steps that differ from those of "generic": only where two candidates tie, which is rare.
struct Ties {
  int64_t groups = 0, differ = 0;
  void add(const Searched &one, const Searched &other) {
    for (size_t i = 0; i < one.step.size(); i++, groups++)
      differ += !same(one.step[i], other.step[i]);
  }
};

std::string check(const std::string &set, const Case &c, const std::vector<float> &x,
                  const cod_transform &transform, const std::vector<float> &transformed,
                  Ties &ties) {
  const Searched one = search(set, c, x, transform, 1);
  ties.add(one, search("generic", c, x, transform, 1));
  std::string trouble = against_formulas(c, transformed, one);
  if (trouble.empty()) trouble = inconsistent(c, one);
  if (trouble.empty() && !(search(set, c, x, transform, 3) == one))
    trouble = "threads 1 and 3 differ";
  if (trouble.empty())
    trouble =
        differs("value without codes", search(set, c, x, transform, 1, true).x_hat, one.x_hat);
  if (trouble.empty()) return "";
  return text(c.images, " images of ", c.positions, " tokens of ", c.channels, ": ", trouble);
}

const char *name_of(bool pixels) { return pixels ? " search_pixels" : " search_tokens"; }

void check_grids(const std::string &set) {
  const struct {
    int bits, group, trials;
    float zero_weight, unit;
  } settings[] = {{4, 32, 4, 0, 0},
                  {4, 32, 4, 0.5f, 0},
                  {4, 16, 1, 0, 0},
                  {3, 12, 6, 0, 0},
                  {2, 128, 16, 0, 0},
                  {4, 1, 3, 0, 0},
                  {7, 20, 5, 0, 0},
                  // a unit that is given: one with room, one that cuts
                  {4, 32, 4, 0, 0.01f},
                  {4, 32, 2, 0, 1e-4f},
                  {4, 20, 3, 0.5f, 0.01f}};
  for (bool pixels : {false, true})
    for (int zero_point : {COD_ZERO_NONE, COD_ZERO_INSIDE, COD_ZERO_WIDE})
      for (const auto &s : settings) {
        if (zero_point == COD_ZERO_WIDE && s.bits > 4) continue;
        Ties ties;
        std::string trouble;
        auto run = [&](int64_t images, int64_t positions, int64_t channels, char layout) {
          const Case c{pixels, s.bits,    s.group,  s.trials, zero_point, s.zero_weight,
                       images, positions, channels, layout,   s.unit};
          const auto x = images_of(c);
          const std::string one = check(set, c, x, {}, x, ties);
          if (trouble.empty()) trouble = one;
        };
        run(3, 37, 40, 'p');
        run(1, 33, 18, 't');
        run(3, 5, 70, 'g');
        run(4, 1, 3, 'p');
        if (trouble.empty() && ties.differ * 50 > ties.groups)
          trouble = text(ties.differ, " of ", ties.groups, " groups differ from generic");
        report(
            text(set, name_of(pixels), " zero-point ", zero_point, " bits ", s.bits, " group ",
                 s.group, " trials ", s.trials, " zero weight ", s.zero_weight, " unit ", s.unit),
            trouble);
      }
}

// y = R((x[order] - shift) / scale), value by value; `rotated` comes from the matrix, in double.
std::vector<float> transformed(const std::vector<float> &x, int64_t n, const cod_transform &t,
                               std::vector<double> &rotated) {
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); i++) {
    const int64_t row = (int64_t)i / n * n, c = (int64_t)i % n;
    y[i] = x[row + (t.order ? t.order[c] : c)];
    if (t.shift) y[i] -= t.shift[c];
    if (t.scale) y[i] /= t.scale[c];
  }
  rotated.assign(y.begin(), y.end());
  for (size_t at = 0; at + 32 <= y.size() && t.hadamard; at++) {
    if ((int64_t)at % n % 32 || (int64_t)at % n + 32 > n) continue;
    for (int i = 0; i < 32; i++) {
      double sum = 0;
      for (int j = 0; j < 32; j++)
        sum += __builtin_parity((unsigned)(i & j)) ? -y[at + j] : y[at + j];
      rotated[at + i] = sum / std::sqrt(32.0);
    }
    for (int distance = 1; distance < 32;
         distance *= 2)  // in float, the order of the additions counts
      for (int i = 0; i < 32; i++) {
        if (i & distance) continue;
        const float a = y[at + i], b = y[at + i + distance];
        y[at + i] = a + b, y[at + i + distance] = a - b;
      }
    for (int i = 0; i < 32; i++) y[at + i] /= (float)std::sqrt(32.0);
  }
  return y;
}

void check_transforms(const std::string &set) {
  for (int64_t channels : {24, 64, 100}) {
    Random random{(uint64_t)channels};
    std::vector<float> shift, scale, inverse;
    std::vector<int32_t> order;
    for (int64_t i = 0; i < channels; i++) {
      shift.push_back(random.bell()), scale.push_back(0.1f + random.uniform());
      inverse.push_back(1 / scale.back()), order.push_back((int32_t)i);
      std::swap(order[i], order[random.below((int)i + 1)]);
    }
    for (int use = 1; use < 16; use++) {
      const cod_transform t{use & 1 ? shift.data() : nullptr, use & 2 ? scale.data() : nullptr,
                            use & 2 ? inverse.data() : nullptr, use & 4 ? order.data() : nullptr,
                            use >> 3};
      const Case c{false,
                   4,
                   32,
                   4,
                   COD_ZERO_INSIDE,
                   0,
                   3,
                   19,
                   channels,
                   use % 2 ? 'p' : 't',
                   use % 3 ? 0 : 0.01f};
      const auto x = images_of(c);
      std::vector<double> exact;
      const auto y = transformed(x, channels, t, exact);
      Ties ties;
      std::string trouble = check(set, c, x, t, y, ties);
      for (size_t i = 0; i < y.size() && trouble.empty(); i++)
        if (std::isfinite(exact[i]) &&
            !(std::fabs(y[i] - exact[i]) <= 1e-5 * (1000 + std::fabs(exact[i]))))
          trouble = text("the additions give ", y[i], ", the matrix ", exact[i]);
      report(text(set, " search_tokens transform", use & 1 ? " shift" : "", use & 2 ? " scale" : "",
                  use & 4 ? " order" : "", use & 8 ? " hadamard" : "", " channels ", channels),
             trouble);
    }
  }
}

void check_threads(const std::string &set) {
  for (bool pixels : {false, true}) {
    const Case c{pixels, 4, 32, 4, COD_ZERO_INSIDE, 0, 3, 700, 72, 'p', 0};
    const auto x = images_of(c);
    const bool equal = search(set, c, x, {}, 1) == search(set, c, x, {}, 3);
    report(text(set, name_of(pixels), " threads 1 and 3"), equal ? "" : "differ");
  }
}

// An image that is not finite has no outputs that are, and spoils no other.
void check_spoilt_image(const std::string &set) {
  const Case c{true, 4, 32, 4, COD_ZERO_INSIDE, 0, 3, 63, 19, 'p', 0};
  const Searched q = search(set, c, images_of(c), {}, 1);
  const std::vector<float> weight((size_t)(9 * c.channels), 0.5f);
  std::vector<float> y((size_t)(c.images * c.positions * c.channels), 77);
  const cod_geometry g = convolution(3, 9, 7, 3, 3, 1, 1, 1);
  const cod_input in{q.codes.data(), q.stride, q.step.data(), nullptr, 0, 2, 0};
  const cod_output out{y.data(), c.channels, nullptr, COD_ACT_NONE};
  std::string trouble =
      cod_depthwise(&in, &g, c.channels, 32, weight.data(), &out, 1) ? "refused" : "";
  for (size_t i = 0; i < y.size() && trouble.empty(); i++)
    if (std::isfinite(y[i]) == ((int64_t)i / (c.positions * c.channels) == 1))
      trouble = text("output ", i, " is ", y[i]);
  report(text(set, " depthwise of an image that is not finite"), trouble);
}

void check_refusals(const std::string &set) {
  cod_select(set.c_str());
  const std::vector<float> x(6 * 40, 1.0f);
  std::vector<int8_t> codes(6 * 64);
  auto refused = [&](const char *what, int64_t rows, int64_t images, int bits, int group,
                     int trials, int zero_point, int64_t stride) {
    const cod_rows in{x.data(), rows, 40, 40, 1};
    const cod_search_spec spec{bits, group, trials, zero_point, 0, 0, {}};
    const cod_quantized out{codes.data(), stride,  nullptr, nullptr,
                            nullptr,      nullptr, nullptr, nullptr};
    for (bool pixels : {false, true})
      report(text(set, name_of(pixels), " refuses ", what),
             (pixels ? cod_search_pixels : cod_search_tokens)(&in, images, &spec, &out, 1) ==
                     COD_BAD_ARGUMENT
                 ? ""
                 : "accepted");
  };
  refused("images of different length", 5, 2, 4, 32, 4, COD_ZERO_INSIDE, 64);
  refused("no image", 6, 0, 4, 32, 4, COD_ZERO_INSIDE, 64);
  refused("codes beyond a byte", 6, 2, 8, 32, 4, COD_ZERO_INSIDE, 64);
  refused("wide zero-points at five bits", 6, 2, 5, 32, 4, COD_ZERO_WIDE, 64);
  refused("groups that are too long", 6, 2, 4, COD_MAX_GROUP + 1, 4, COD_ZERO_INSIDE, 64);
  refused("no trial", 6, 2, 4, 32, 0, COD_ZERO_INSIDE, 64);
  refused("too many trials", 6, 2, 4, 32, COD_MAX_TRIALS + 1, COD_ZERO_INSIDE, 64);
  refused("an unknown zero-point", 6, 2, 4, 32, 4, 3, 64);
  refused("rows without room for the codes", 6, 2, 4, 32, 4, COD_ZERO_INSIDE, 32);
}

}  // namespace

void check_searched(const std::string &set) {
  check_grids(set);
  check_transforms(set);
  check_threads(set);
  check_spoilt_image(set);
  check_refusals(set);
}
