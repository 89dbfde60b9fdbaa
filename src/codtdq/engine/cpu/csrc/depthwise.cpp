// Depthwise convolutions of carriers: a band of output lines and a block of channels at a time.
// Input lines become floats once, just before they are needed, and are kept while the kernel is
// over them; sums of whole numbers are exact in them.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <vector>

#include "aligned.h"
#include "geometry.h"
#include "kernels.h"

namespace {

constexpr int64_t kBands = 8;                          // of an image, to share among threads
constexpr int64_t kFewestLines = 4;                    // of a band
constexpr int64_t kNear = 384 * 1024 / sizeof(float);  // values that are kept
constexpr int64_t kVector = 16;                        // floats; no instruction set has more
constexpr int64_t kMostTaps = 1024;  // sums of 127 * 127 are whole in float32, in any order

// Output lines [begin, end) of one image and the first input line that they read.
struct Band {
  int64_t image, begin, end, low;
};

class Depthwise {
 public:
  // weight: [taps, channels]; scale: [batch, channels].
  Depthwise(const cod_carrier &x, const cod_geometry &g, int64_t channels, const float *weight,
            const float *scale, const cod_output &y)
      : x_(x),
        g_(g),
        channels_(channels),
        weight_(weight),
        scale_(scale),
        y_(y),
        gated_(y.activation == COD_ACT_GATED_GELU),
        outputs_(gated_ ? channels / 2 : channels) {
    for (int ky = 0; ky < g.kernel_h; ky++)
      for (int kx = 0; kx < g.kernel_w; kx++)
        taps_.push_back(
            {(int64_t)ky * g.dilation_h - g.pad_h, (int64_t)kx * g.dilation_w - g.pad_w});
    // pixels whose taps all lie inside the line
    const int64_t width = (int64_t)(g.kernel_w - 1) * g.dilation_w + 1;
    inner_begin_ = (g.pad_w + g.stride_w - 1) / g.stride_w;
    const int64_t room = g.in_w + g.pad_w - width;
    inner_end_ = room < 0 ? 0 : std::min(g.out_w, room / g.stride_w + 1);
    // the lines around a band are converted for its neighbours once more: not too many of them
    const int64_t around = (int64_t)(g.kernel_h - 1) * g.dilation_h / g.stride_h;
    lines_ = std::max({kFewestLines, (g.out_h + kBands - 1) / kBands, 2 * around});
    bands_ = (g.out_h + lines_ - 1) / lines_;
    kept_ = std::min((int64_t)(g.kernel_h - 1) * g.dilation_h + 1, g.in_h);
    const int64_t most = std::max(kNear / (kept_ * g.in_w), kVector);
    const int64_t wanted = std::min((kBands + bands_ - 1) / bands_, outputs_ / (4 * kVector));
    blocks_ = std::max((outputs_ + most - 1) / most, wanted);
    block_ = (outputs_ + blocks_ - 1) / blocks_;
    block_ = (block_ + kVector - 1) / kVector * kVector;
    // a cache line more: pixels at the same distance would fight for the same places of the cache
    pixel_ = block_ + kVector;
  }

  int64_t items() const { return g_.batch * bands_ * blocks_; }
  int64_t values() const { return kept_ * g_.in_w * pixel_; }
  int64_t line_values() const { return gated_ ? g_.out_w * pixel_ : 0; }

  // x_hat: room for `values()`, line: for `line_values()`.
  void run(int64_t item, float *x_hat, float *line) const {
    const int64_t from = item % blocks_ * block_, n = std::min(outputs_ - from, block_);
    const int64_t image = item / blocks_ / bands_, begin = item / blocks_ % bands_ * lines_;
    const Band band{image, begin, std::min(begin + lines_, g_.out_h),
                    std::max<int64_t>(begin * g_.stride_h - g_.pad_h, 0)};
    const int activation = gated_ ? (int)COD_ACT_GELU : y_.activation;
    int64_t ready = band.low;
    for (int64_t oy = band.begin; oy < band.end; oy++) {
      float *out = output(band, oy) + from;
      ready = convert(band, ready, oy, from, n, x_hat);
      compute(band.image, oy, from, n, x_hat, out, y_.row_stride);
      for (int64_t p = 0; p < g_.out_w && activation != COD_ACT_NONE; p++)
        cod::kernels().activate(out + p * y_.row_stride, n, activation);
    }
    ready = band.low;
    for (int64_t oy = band.begin; oy < band.end && gated_; oy++) {
      float *out = output(band, oy) + from;
      ready = convert(band, ready, oy, outputs_ + from, n, x_hat);
      compute(band.image, oy, outputs_ + from, n, x_hat, line, pixel_);
      for (int64_t p = 0; p < g_.out_w; p++)
        cod::kernels().multiply(out + p * y_.row_stride, line + p * pixel_, n);
    }
  }

 private:
  struct Tap {
    int64_t dy, dx;
  };

  float *output(const Band &band, int64_t oy) const {
    return y_.data + (band.image * g_.out_h + oy) * g_.out_w * y_.row_stride;
  }

  // Where input line iy is kept: in the place of one that no kernel needs any more.
  template <typename T>
  T *place(T *x_hat, int64_t iy) const {
    return x_hat + iy % kept_ * g_.in_w * pixel_;
  }

  // The input lines from `ready` on that output line oy reads; returns where the next one begins.
  int64_t convert(const Band &band, int64_t ready, int64_t oy, int64_t from, int64_t n,
                  float *x_hat) const {
    const int64_t last = oy * g_.stride_h - g_.pad_h + (int64_t)(g_.kernel_h - 1) * g_.dilation_h;
    const int64_t end = std::min(last + 1, g_.in_h);
    if (end <= ready) return ready;
    for (int64_t iy = ready; iy < end; iy++) {
      float *to = place(x_hat, iy);
      for (int64_t ix = 0; ix < g_.in_w; ix++, to += pixel_) {
        const int64_t row = (band.image * g_.in_h + iy) * g_.in_w + ix;
        cod::kernels().as_floats(x_.data + row * x_.stride + from, n, to);
      }
    }
    return end;
  }

  // One output line of n channels.
  void compute(int64_t image, int64_t oy, int64_t from, int64_t n, const float *x_hat, float *out,
               int64_t out_step) const {
    std::vector<const float *> x(taps_.size()), weight(taps_.size());
    const float *scale = scale_ + image * channels_ + from;
    for (int64_t ox = 0; ox < g_.out_w;) {
      const bool inner = ox >= inner_begin_ && ox < inner_end_;
      const int64_t pixels = inner ? inner_end_ - ox : 1;
      int count = 0;
      for (size_t t = 0; t < taps_.size(); t++) {
        const int64_t iy = oy * g_.stride_h + taps_[t].dy, ix = ox * g_.stride_w + taps_[t].dx;
        if (iy < 0 || iy >= g_.in_h || ix < 0 || ix >= g_.in_w) continue;
        x[count] = place(x_hat, iy) + ix * pixel_;
        weight[count++] = weight_ + (int64_t)t * channels_ + from;
      }
      cod::kernels().depthwise({x.data(), weight.data(), y_.bias ? y_.bias + from : nullptr, scale,
                                count, pixels, g_.stride_w * pixel_, out_step, out + ox * out_step},
                               n);
      ox += pixels;
    }
  }

  const cod_carrier &x_;
  const cod_geometry &g_;
  const int64_t channels_;
  const float *const weight_, *const scale_;
  const cod_output &y_;
  const bool gated_;
  const int64_t outputs_;
  std::vector<Tap> taps_;
  int64_t inner_begin_, inner_end_, lines_, bands_, kept_, block_, blocks_, pixel_;
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

extern "C" int32_t cod_carrier_depthwise(const cod_carrier *x, const cod_geometry *geometry,
                                         int64_t channels, const int8_t *weight,
                                         int64_t weight_count, const float *factor,
                                         int64_t factor_count, const cod_output *y,
                                         int32_t threads) try {
  if (!x || !weight || !factor || !y || !cod::fits(geometry) || channels < 1 ||
      x->stride < channels || factor_count < channels)
    return COD_BAD_ARGUMENT;
  if (y->activation == COD_ACT_GATED_GELU && channels % 2) return COD_BAD_ARGUMENT;
  const cod_geometry &g = *geometry;
  const int64_t taps = (int64_t)g.kernel_h * g.kernel_w, pixels = g.batch * g.out_h * g.out_w;
  if (taps > kMostTaps || !cod::fills(weight_count, taps, channels)) return COD_BAD_ARGUMENT;
  if (pixels == 0) return COD_OK;
  const int64_t outputs = y->activation == COD_ACT_GATED_GELU ? channels / 2 : channels;
  if (x->unit_rows < 1 || x->unit_rows != g.in_h * g.in_w ||
      (x->unit_stride && x->unit_stride < channels) ||
      !cod::holds(*x, g.batch * g.in_h * g.in_w, channels) ||
      !cod::holds(*y, pixels, outputs, channels))
    return COD_BAD_ARGUMENT;
  std::vector<float> whole((size_t)(taps * channels)), scale((size_t)(g.batch * channels));
  for (int64_t i = 0; i < taps * channels; i++) whole[i] = (float)weight[i];
  for (int64_t i = 0; i < g.batch * channels; i++)
    scale[i] = (x->unit_stride ? x->unit[i / channels * x->unit_stride + i % channels]
                               : x->unit[i / channels]) *
               factor[i % channels];
  return share(Depthwise(*x, g, channels, whole.data(), scale.data(), *y), pixels * channels * taps,
               threads);
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}
