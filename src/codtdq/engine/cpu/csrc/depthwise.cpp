// Depthwise convolutions of carriers: a band of output lines and a block of channels at a time.
// Carriers are spread to the numbers of `Kernels::depthwise_carriers`, which hold one tap or four
// at once (one below the other, or side by side), line by line just before they are needed, and are
// kept while the kernel is over them. Lines are as long as kernels reach, zeros outside of the map.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <vector>

#include "aligned.h"
#include "carrier_weight.h"
#include "geometry.h"
#include "kernels.h"

namespace {

constexpr int64_t kBands = 8;                          // of an image, to share among threads
constexpr int64_t kFewestLines = 4;                    // of a band
constexpr int64_t kNear = 384 * 1024 / sizeof(float);  // values that are kept
constexpr int64_t kVector = 16;                        // floats; no instruction set has more
constexpr int64_t kMostTaps = 1024;  // sums of 127 * 127 are whole in float32, in any order

// Output lines [begin, end) of one image and the first line of numbers that they read.
struct Band {
  int64_t image, begin, end, low;
};

// Output pixels [first, last), counted through lines and images; y holds these and no other.
struct Pixels {
  int64_t first, last;
};

class Depthwise {
 public:
  // weight: [taps, channels]; scale: [batch, channels].
  Depthwise(const cod_carrier &x, const cod_geometry &g, int64_t channels, const int8_t *weight,
            const float *scale, const cod_output &y, const Pixels &pixels)
      : x_(x),
        g_(g),
        pixels_(pixels),
        channels_(channels),
        scale_(scale),
        y_(y),
        gated_(y.activation == COD_ACT_GATED_GELU),
        outputs_(gated_ ? channels / 2 : channels),
        together_(cod::kernels().depthwise_taps) {
    choose_taps();
    take_weights(weight);
    const auto bands = cut_lines();
    const int64_t most = std::max(kNear / (kept_ * width_), kVector);
    const int64_t wanted = std::min((kBands + bands - 1) / bands, outputs_ / (4 * kVector));
    blocks_ = std::max((outputs_ + most - 1) / most, wanted);
    block_ = (outputs_ + blocks_ - 1) / blocks_;
    block_ = (block_ + kVector - 1) / kVector * kVector;
    // a cache line more: pixels at the same distance would fight for the same places of the cache
    pixel_ = block_ + kVector;
  }

  int64_t items() const { return (int64_t)bands_.size() * blocks_; }
  int64_t values() const { return kept_ * width_ * pixel_; }
  int64_t line_values() const { return gated_ ? g_.out_w * pixel_ : 0; }

  // x_hat: room for `values()`, line: for `line_values()`.
  void run(int64_t item, float *x_hat, float *line) const {
    const int64_t from = item % blocks_ * block_, n = std::min(outputs_ - from, block_);
    const Band &band = bands_[(size_t)(item / blocks_)];
    const int activation = gated_ ? (int)COD_ACT_GELU : y_.activation;
    Lists own = lists();
    int64_t ready = band.low;
    for (int64_t oy = band.begin; oy < band.end; oy++) {
      const Part part = part_of(band.image, oy);
      float *out = part.y + from;
      ready = spread(band, ready, oy, from, n, own, x_hat);
      compute(band.image, oy, part, from, n, own, x_hat, out, y_.row_stride);
      const bool dense = y_.row_stride == n;  // one long row
      for (int64_t p = 0; p < (dense ? 1 : part.count) && activation != COD_ACT_NONE; p++)
        cod::kernels().activate(out + p * y_.row_stride, dense ? n * part.count : n, activation);
    }
    ready = band.low;
    for (int64_t oy = band.begin; oy < band.end && gated_; oy++) {
      const Part part = part_of(band.image, oy);
      float *out = part.y + from;
      ready = spread(band, ready, oy, outputs_ + from, n, own, x_hat);
      compute(band.image, oy, part, outputs_ + from, n, own, x_hat, line, pixel_);
      for (int64_t p = 0; p < part.count; p++)
        cod::kernels().multiply(out + p * y_.row_stride, line + p * pixel_, n);
    }
  }

 private:
  static constexpr int64_t kMostTogether = 4;

  // The first of the taps that one number holds, and where it lies from the output's place on.
  struct Tap {
    int64_t dy, dx, ky, kx;
  };

  // Which taps go together, and which part of the map they need.
  void choose_taps() {
    const auto groups = [&](int64_t n) { return (n + together_ - 1) / together_; };
    const bool near = (together_ - 1) * g_.dilation_h <= g_.in_h;  // few lines beside the map
    const bool down = near && g_.kernel_w * groups(g_.kernel_h) < g_.kernel_h * groups(g_.kernel_w);
    const int64_t step_y = down ? together_ : 1, step_x = down ? 1 : together_;
    far_y_ = down ? g_.dilation_h : 0, far_x_ = down ? 0 : g_.dilation_w;
    first_line_ = -(together_ - 1) * far_y_;
    const int64_t last = (g_.out_w - 1) * g_.stride_w;
    int64_t right = 0;
    for (int64_t ky = 0; ky < g_.kernel_h; ky += step_y)
      for (int64_t kx = 0; kx < g_.kernel_w; kx += step_x) {
        const int64_t dy = ky * g_.dilation_h - g_.pad_h, dx = kx * g_.dilation_w - g_.pad_w;
        if (dx + last + reach() < 0 || dx >= g_.in_w) continue;  // beside the map everywhere
        left_ = taps_.empty() ? dx : std::min(left_, dx);
        right = taps_.empty() ? dx : std::max(right, dx);
        top_ = taps_.empty() ? dy : top_, bottom_ = dy;
        taps_.push_back({dy, dx, ky, kx});
      }
    width_ = right + last - left_ + 1;
    kept_ = std::min(bottom_ - top_ + 1, g_.in_h - first_line_);
  }

  void take_weights(const int8_t *weight) {
    const int64_t each = channels_ + kVector;
    blank_.assign((size_t)channels_, 0);
    weight_.resize(taps_.size() * (size_t)each);
    for (size_t t = 0; t < taps_.size(); t++) {
      const int8_t *rows[kMostTogether];
      for (int64_t j = 0; j < together_; j++) {
        const int64_t ky = taps_[t].ky + (far_y_ ? j : 0), kx = taps_[t].kx + (far_y_ ? 0 : j);
        const bool exists = ky < g_.kernel_h && kx < g_.kernel_w;
        rows[j] = exists ? weight + (ky * g_.kernel_w + kx) * channels_ : blank_.data();
      }
      cod::kernels().depthwise_weights(rows, channels_, &weight_[t * (size_t)each]);
    }
  }

  // Bands of the lines that have wanted pixels; returns how many of them an image has.
  int64_t cut_lines() {
    // the lines around a band are spread for its neighbours once more: not too many of them
    const int64_t around = (int64_t)(g_.kernel_h - 1) * g_.dilation_h / g_.stride_h;
    const int64_t most = std::max({kFewestLines, (g_.out_h + kBands - 1) / kBands, 2 * around});
    const int64_t end = (pixels_.last - 1) / g_.out_w + 1;
    for (int64_t line = pixels_.first / g_.out_w; line < end;) {
      const int64_t image = line / g_.out_h, begin = line % g_.out_h;
      const int64_t count = std::min({most - begin % most, end - line, g_.out_h - begin});
      bands_.push_back(
          {image, begin, begin + count, std::max(begin * g_.stride_h + top_, first_line_)});
      line += count;
    }
    return (g_.out_h + most - 1) / most;
  }

  // The wanted pixels of a line, and where the first one is written.
  struct Part {
    int64_t from, count;
    float *y;
  };
  Part part_of(int64_t image, int64_t oy) const {
    const int64_t begin = (image * g_.out_h + oy) * g_.out_w;
    const int64_t from = std::max(pixels_.first, begin);
    const int64_t to = std::min(pixels_.last, begin + g_.out_w);
    return {from - begin, to - from, y_.data + (from - pixels_.first) * y_.row_stride};
  }

  // Where line iy is kept: in the place of one that no kernel needs any more.
  template <typename T>
  T *place(T *x_hat, int64_t iy) const {
    return x_hat + (iy - first_line_) % kept_ * width_ * pixel_;
  }

  // Pointers of a thread, for one line.
  struct Lists {
    std::vector<const int8_t *> pixels;
    std::vector<const float *> x, weight;
  };
  Lists lists() const {
    return {std::vector<const int8_t *>((size_t)(far_y_ ? together_ * width_ : width_ + reach())),
            std::vector<const float *>(taps_.size()), std::vector<const float *>(taps_.size())};
  }
  int64_t reach() const { return (together_ - 1) * far_x_; }  // of a number to its right

  // The lines from `ready` on that output line oy reads; returns where the next one begins.
  int64_t spread(const Band &band, int64_t ready, int64_t oy, int64_t from, int64_t n, Lists &own,
                 float *x_hat) const {
    const int64_t end = std::min(oy * g_.stride_h + bottom_ + 1, g_.in_h);
    const int64_t lines = far_y_ ? together_ : 1, each = width_ + reach();
    for (; ready < end; ready++) {
      for (int64_t j = 0; j < lines; j++) {
        const int64_t y = ready + j * far_y_;
        const bool inside = y >= 0 && y < g_.in_h;
        const int8_t *line =
            x_.data + (inside ? (band.image * g_.in_h + y) * g_.in_w * x_.stride : 0) + from;
        for (int64_t p = 0; p < each; p++) {
          const int64_t ix = left_ + p;
          own.pixels[j * each + p] =
              inside && ix >= 0 && ix < g_.in_w ? line + ix * x_.stride : blank_.data();
        }
      }
      cod::kernels().depthwise_spread(own.pixels.data(), width_, far_y_ ? each : far_x_, n,
                                      place(x_hat, ready), pixel_);
    }
    return ready;
  }

  // n channels of a part of an output line.
  void compute(int64_t image, int64_t oy, const Part &part, int64_t from, int64_t n, Lists &own,
               const float *x_hat, float *out, int64_t out_step) const {
    int count = 0;
    for (size_t t = 0; t < taps_.size(); t++) {
      const int64_t iy = oy * g_.stride_h + taps_[t].dy;
      if (iy < first_line_ || iy >= g_.in_h) continue;
      own.x[count] = place(x_hat, iy) + (taps_[t].dx - left_ + part.from * g_.stride_w) * pixel_;
      own.weight[count++] = &weight_[t * (size_t)(channels_ + kVector) + (size_t)from];
    }
    cod::kernels().depthwise_carriers(
        {own.x.data(), own.weight.data(), y_.bias ? y_.bias + from : nullptr,
         scale_ + image * channels_ + from, count, part.count, g_.stride_w * pixel_, out_step, out},
        n);
  }

  const cod_carrier &x_;
  const cod_geometry &g_;
  const Pixels pixels_;
  const int64_t channels_;
  const float *const scale_;
  const cod_output &y_;
  const bool gated_;
  const int64_t outputs_, together_;
  std::vector<Tap> taps_;
  std::vector<float> weight_;
  std::vector<int8_t> blank_;  // carriers outside of the map
  int64_t far_y_, far_x_;      // from one of the taps that go together to the next
  int64_t first_line_;         // of numbers that hold something of the map
  int64_t left_ = 0, top_ = 0, bottom_ = 0, width_;
  std::vector<Band> bands_;
  int64_t kept_, block_, blocks_, pixel_;
};

// products: how many there are.
int32_t share(const Depthwise &work, int64_t products, int32_t threads) {
  if (products * 8 < cod::kWorthSharing) threads = 1;
  std::atomic<bool> failed{false};
  cod::parallel_for(work.items(), 1, threads, [&](int64_t first, int64_t last) {
    float *x_hat = cod::scratch(work.values() + work.line_values());
    if (!x_hat) failed = true;
    for (int64_t item = first; x_hat && item < last; item++)
      work.run(item, x_hat, x_hat + work.values());
  });
  return failed ? COD_NO_MEMORY : COD_OK;
}

}  // namespace

int32_t cod::carrier_depthwise(const cod_carrier *x, const cod_geometry *geometry, int64_t channels,
                               const int8_t *weight, int64_t weight_count, const float *factor,
                               int64_t factor_count, const cod_output *y, int64_t first,
                               int64_t rows, int32_t threads) {
  if (!x || !weight || !factor || !y || !cod::fits(geometry) || channels < 1 ||
      x->stride < channels || factor_count < channels)
    return COD_BAD_ARGUMENT;
  if (y->activation == COD_ACT_GATED_GELU && channels % 2) return COD_BAD_ARGUMENT;
  const cod_geometry &g = *geometry;
  const int64_t taps = (int64_t)g.kernel_h * g.kernel_w, pixels = g.batch * g.out_h * g.out_w;
  if (taps > kMostTaps || !cod::fills(weight_count, taps, channels) || first < 0 || rows < 0 ||
      first > pixels || rows > pixels - first)
    return COD_BAD_ARGUMENT;
  if (rows == 0) return COD_OK;
  const int64_t outputs = y->activation == COD_ACT_GATED_GELU ? channels / 2 : channels;
  if (x->unit_rows < 1 || x->unit_rows != g.in_h * g.in_w ||
      (x->unit_stride && x->unit_stride < channels) ||
      !cod::holds(*x, g.batch * g.in_h * g.in_w, channels) ||
      !cod::holds(*y, rows, outputs, channels))
    return COD_BAD_ARGUMENT;
  std::vector<float> scale((size_t)(g.batch * channels));
  for (int64_t i = 0; i < g.batch * channels; i++)
    scale[i] = (x->unit_stride ? x->unit[i / channels * x->unit_stride + i % channels]
                               : x->unit[i / channels]) *
               factor[i % channels];
  return share(Depthwise(*x, g, channels, weight, scale.data(), *y, {first, first + rows}),
               rows * channels * taps, threads);
}

extern "C" int32_t cod_carrier_depthwise(const cod_carrier *x, const cod_geometry *geometry,
                                         int64_t channels, const int8_t *weight,
                                         int64_t weight_count, const float *factor,
                                         int64_t factor_count, const cod_output *y,
                                         int32_t threads) try {
  if (!cod::fits(geometry)) return COD_BAD_ARGUMENT;
  const int64_t rows = geometry->batch * geometry->out_h * geometry->out_w;
  return cod::carrier_depthwise(x, geometry, channels, weight, weight_count, factor, factor_count,
                                y, 0, rows, threads);
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}
