#include "image.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <vector>

namespace cod {
namespace {

constexpr int kBits = 22;  // of a weight behind the point: 8 bits of pixels and a sign fit above

// Weights of the pixels that one pixel of another size averages: a triangle that spans two pixels
// of the coarser grid.
struct Taps {
  std::vector<int64_t> first;
  std::vector<std::vector<int32_t>> weight;
  Taps(int64_t inside, int64_t outside) {
    const double scale = (double)inside / (double)outside, reach = std::max(scale, 1.0);
    for (int64_t at = 0; at < outside; at++) {
      const double center = ((double)at + 0.5) * scale;
      const int64_t low = std::max<int64_t>((int64_t)(center - reach + 0.5), 0);
      const int64_t high = std::min<int64_t>((int64_t)(center + reach + 0.5), inside);
      std::vector<double> share;
      double total = 0;
      for (int64_t i = low; i < high; i++) {
        const double distance =
            std::fabs(((double)(i - low) + (double)low - center + 0.5) * (1.0 / reach));
        share.push_back(distance < 1.0 ? 1.0 - distance : 0.0);
        total += share.back();
      }
      std::vector<int32_t> own;
      for (double one : share)
        own.push_back((int32_t)(0.5 + (total != 0 ? one / total : one) * (1 << kBits)));
      first.push_back(low), weight.push_back(own);
    }
  }
};

uint8_t rounded(int32_t sum) { return (uint8_t)std::min(std::max(sum >> kBits, 0), 255); }

// [height, width, 3] without gaps, of another width, then of another height.
std::vector<uint8_t> resized(const Pixels &image, int64_t height, int64_t width) {
  if (image.height * width * 3 > (int64_t)PTRDIFF_MAX) throw std::bad_alloc();
  std::vector<uint8_t> wide((size_t)(image.height * width * 3));
  const bool same_width = width == image.width, same_height = height == image.height;
  const Taps across(image.width, width), down(image.height, height);
  for (int64_t y = 0; y < image.height; y++) {
    const uint8_t *row = image.data + y * image.row_bytes;
    uint8_t *to = wide.data() + y * width * 3;
    if (same_width) {
      std::copy(row, row + 3 * width, to);
      continue;
    }
    for (int64_t x = 0; x < width; x++)
      for (int c = 0; c < 3; c++) {
        int32_t sum = 1 << (kBits - 1);
        const uint8_t *from = row + across.first[x] * 3 + c;
        for (size_t i = 0; i < across.weight[x].size(); i++)
          sum += from[3 * i] * across.weight[x][i];
        to[3 * x + c] = rounded(sum);
      }
  }
  if (same_height) return wide;
  std::vector<uint8_t> done((size_t)(height * width * 3));
  std::vector<int32_t> sums((size_t)(width * 3));
  for (int64_t y = 0; y < height; y++) {
    std::fill(sums.begin(), sums.end(), 1 << (kBits - 1));
    for (size_t i = 0; i < down.weight[y].size(); i++) {
      const uint8_t *from = wide.data() + (down.first[y] + (int64_t)i) * width * 3;
      for (int64_t x = 0; x < width * 3; x++) sums[x] += from[x] * down.weight[y][i];
    }
    for (int64_t x = 0; x < width * 3; x++) done[y * width * 3 + x] = rounded(sums[x]);
  }
  return done;
}

float sigmoid(float x) { return (float)(1.0 / (1.0 + std::exp(-(double)x))); }

// Where the pixels of an axis of another length lie between two old ones, as torch has it.
struct Between {
  std::vector<int64_t> low, high;
  std::vector<float> share;  // of `high`
  Between(int64_t inside, int64_t outside, bool aligned) {
    float step = outside > 0 ? (float)inside / (float)outside : 0;
    if (aligned) step = outside > 1 ? (float)(inside - 1) / (float)(outside - 1) : 0;
    for (int64_t i = 0; i < outside; i++) {
      const float at = aligned ? step * (float)i : std::max(step * ((float)i + 0.5f) - 0.5f, 0.0f);
      const int64_t left = std::min((int64_t)at, inside - 1);
      low.push_back(left), high.push_back(std::min(left + 1, inside - 1));
      share.push_back(std::min(std::max(at - (float)left, 0.0f), 1.0f));
    }
  }
};

void interpolate(const std::vector<float> &from, int64_t rows, int64_t columns, bool aligned,
                 int64_t height, int64_t width, std::vector<float> &to) {
  const Between down(rows, height, aligned), across(columns, width, aligned);
  to.resize((size_t)(height * width));
  for (int64_t y = 0; y < height; y++) {
    const float *above = from.data() + down.low[y] * columns;
    const float *below = from.data() + down.high[y] * columns;
    const float second = down.share[y], first = 1.0f - second;
    for (int64_t x = 0; x < width; x++) {
      const float right = across.share[x], left = 1.0f - right;
      const int64_t a = across.low[x], b = across.high[x];
      to[y * width + x] = first * (left * above[a] + right * above[b]) +
                          second * (left * below[a] + right * below[b]);
    }
  }
}

}  // namespace

void to_input(const Pixels &image, const float *mean, const float *deviation, int64_t height,
              int64_t width, float *to) {
  const std::vector<uint8_t> pixels = resized(image, height, width);
  for (int c = 0; c < 3; c++)
    for (int64_t i = 0; i < height * width; i++)
      to[c * height * width + i] = ((float)pixels[3 * i + c] / 255.0f - mean[c]) / deviation[c];
}

bool to_mask(const float *logits, int64_t rows, int64_t columns, Postprocess how, int64_t height,
             int64_t width, uint8_t *mask, int64_t mask_row_bytes) {
  std::vector<float> values(logits, logits + rows * columns), done;
  for (float one : values)
    if (!std::isfinite(one)) return false;
  const bool stretched = how == Postprocess::kSigmoidMinmax;
  if (!stretched)
    for (float &one : values) {
      one = sigmoid(one);
      if (how == Postprocess::kBinary) one = one >= 0.5f ? 1.0f : 0.0f;
    }
  interpolate(values, rows, columns, !stretched, height, width, done);
  float low = 0, range = 1;
  if (stretched) {
    for (float &one : done) one = sigmoid(one);
    const auto ends = std::minmax_element(done.begin(), done.end());
    low = *ends.first, range = *ends.second - low + 1e-8f;
  }
  for (int64_t y = 0; y < height; y++)
    for (int64_t x = 0; x < width; x++) {
      const float value = done[y * width + x];
      const float code = stretched ? std::nearbyint((value - low) / range * 255.0f)
                                   : std::floor(std::min(std::max(value, 0.0f), 1.0f) * 255.0f);
      mask[y * mask_row_bytes + x] = (uint8_t)code;
    }
  return true;
}

}  // namespace cod
