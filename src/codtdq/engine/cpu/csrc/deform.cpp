// Deformable 3x3 convolutions in float32: the samples of a whole map are nine times its size; those
// of a few tokens stay in the cache until they are multiplied.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>

#include "float_product.h"

namespace {

constexpr int kSide = 3, kPoints = kSide * kSide;

// The pixels around a point and their shares, as bilinear interpolation weighs them.
struct Corners {
  const float *pixel[4];
  float share[4];
  int count = 0;
  void add(const float *x, float part) { pixel[count] = x, share[count++] = part; }
};

// A point outside the map, or none at all (NaN), reads zeros.
Corners around(const cod_deform &shape, const float *image, float y, float x) {
  Corners found;
  const float height = (float)shape.height, width = (float)shape.width;
  if (!(y > -1.0f && y < height && x > -1.0f && x < width)) return found;
  const float top = std::floor(y), left = std::floor(x), down = y - top, right = x - left;
  for (int corner = 0; corner < 4; corner++) {
    const int64_t row = (int64_t)top + corner / 2, column = (int64_t)left + corner % 2;
    if (row < 0 || row >= shape.height || column < 0 || column >= shape.width) continue;
    const float share = (corner / 2 ? down : 1 - down) * (corner % 2 ? right : 1 - right);
    found.add(image + (row * shape.width + column) * shape.channels, share);
  }
  return found;
}

// Samples of tokens [first, first + count): rows [count, 9, channels].
void sample(const float *x, const float *offsets, const cod_deform &s, int64_t first, int64_t count,
            float *rows) {
  for (int64_t token = first; token < first + count; token++) {
    const int64_t column = token % s.width, row = token / s.width % s.height;
    const int64_t image = token / s.width / s.height;
    const float *delta =
        offsets + image * s.offset_image + row * s.offset_row + column * s.offset_column;
    for (int point = 0; point < kPoints; point++, rows += s.channels) {
      const float dy = delta[2 * point * s.offset_channel];
      const float dx = delta[(2 * point + 1) * s.offset_channel];
      const Corners found =
          around(s, x + image * s.height * s.width * s.channels,
                 (float)(row + point / kSide - 1) + dy, (float)(column + point % kSide - 1) + dx);
      cod::kernels().blend(found.pixel, found.share, found.count, s.channels, rows);
    }
  }
}

bool fits(const cod_deform &s, int64_t outputs) {
  const int64_t tokens = cod::product(s.batch, s.height, s.width);
  return s.batch >= 1 && s.height >= 1 && s.width >= 1 && s.channels >= 1 && outputs >= 1 &&
         s.channels <= cod::kMostSide && outputs <= cod::kMostSide &&
         cod::fills(s.map_count, tokens, s.channels) &&
         cod::holds(s.offset_count, {{s.batch, s.offset_image},
                                     {2 * kPoints, s.offset_channel},
                                     {s.height, s.offset_row},
                                     {s.width, s.offset_column}});
}

}  // namespace

extern "C" int32_t cod_deform_conv(const float *x, const float *offsets, const cod_deform *shape,
                                   const float *packed, int64_t packed_count, int64_t outputs,
                                   const cod_output *y, int32_t threads) try {
  if (!x || !offsets || !shape || !packed || !y || !fits(*shape, outputs) ||
      (uintptr_t)packed % 64 || y->activation != COD_ACT_NONE)
    return COD_BAD_ARGUMENT;
  const cod_deform &s = *shape;
  const int64_t rows = s.batch * s.height * s.width, depth = kPoints * s.channels;
  const cod::Panels panels(depth, outputs);
  if (packed_count < panels.floats() || !cod::holds(*y, rows, outputs, outputs))
    return COD_BAD_ARGUMENT;
  constexpr int64_t kBlock = cod::kFloatBlock;
  if (rows * depth * (8 + outputs) < cod::kWorthSharing) threads = 1;
  std::atomic<bool> failed{false};
  cod::parallel_for((rows + kBlock - 1) / kBlock, 1, threads, [&](int64_t begin, int64_t end) {
    float *samples = cod::scratch(kBlock * depth);
    if (!samples) failed = true;
    const float *at[kBlock + 8];
    for (int64_t b = begin; samples && b < end; b++) {
      const int64_t first = b * kBlock, n = std::min(kBlock, rows - first);
      sample(x, offsets, s, first, n, samples);
      cod::point(samples, depth, n, at);
      cod::multiply(
          {at, n, 1, depth}, panels, packed, 0, panels.count(),
          {y->data + first * y->row_stride, y->row_stride, y->bias, nullptr, 0, cod::kCopyOp});
    }
  });
  return failed ? COD_NO_MEMORY : COD_OK;
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}
