// The samples that a deformable 3x3 convolution multiplies with its weight, token by token.
#include <cmath>

#include "geometry.h"
#include "kernels.h"

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

}  // namespace

extern "C" int32_t cod_deform_rows(const float *x, const float *offsets, const cod_deform *shape,
                                   int64_t first, int64_t count, float *rows, int64_t row_count,
                                   int32_t threads) {
  if (!x || !offsets || !shape || !rows || first < 0 || count < 0) return COD_BAD_ARGUMENT;
  const cod_deform &s = *shape;
  const int64_t tokens = cod::product(s.batch, s.height, s.width);
  if (s.batch < 1 || s.height < 1 || s.width < 1 || s.channels < 1 || tokens < 0 ||
      first > tokens || count > tokens - first || !cod::fills(s.map_count, tokens, s.channels) ||
      !cod::fills(row_count, count, kPoints, s.channels) ||
      !cod::holds(s.offset_count, {{s.batch, s.offset_image},
                                   {2 * kPoints, s.offset_channel},
                                   {s.height, s.offset_row},
                                   {s.width, s.offset_column}}))
    return COD_BAD_ARGUMENT;
  if (count * kPoints * s.channels * 8 < cod::kWorthSharing) threads = 1;
  cod::parallel_for(count, 16, threads, [&](int64_t begin, int64_t end) {
    for (int64_t token = first + begin; token < first + end; token++) {
      const int64_t column = token % s.width, row = token / s.width % s.height;
      const int64_t image = token / s.width / s.height;
      const float *delta =
          offsets + image * s.offset_image + row * s.offset_row + column * s.offset_column;
      float *to = rows + (token - first) * kPoints * s.channels;
      for (int point = 0; point < kPoints; point++, to += s.channels) {
        const float dy = delta[2 * point * s.offset_channel];
        const float dx = delta[(2 * point + 1) * s.offset_channel];
        const Corners found =
            around(s, x + image * s.height * s.width * s.channels,
                   (float)(row + point / kSide - 1) + dy, (float)(column + point % kSide - 1) + dx);
        cod::kernels().blend(found.pixel, found.share, found.count, s.channels, to);
      }
    }
  });
  return COD_OK;
}
