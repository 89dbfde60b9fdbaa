// Maps [B, H, W, C] with channels side by side.
//   resize: y, x; ints [mode, align_corners], floats [height scale, width scale] (input pixels for
//     an output pixel). Modes: bilinear, nearest, nearest with pixel centres.
//   pool: y, x; ints [mode, kernel (2), stride (2), padding (2), counted]. Modes: average, maximum,
//     adaptive average, adaptive maximum. counted: padding counts in an average.
//   sample: y, x, grid [B, H, W, 2]; ints [align_corners]: bilinear, zeros outside.
//   depthwise: y, x, weight [taps, C], bias?; ints: geometry (13 numbers), activation.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "aligned.h"
#include "geometry.h"
#include "kernels.h"
#include "program.h"

namespace cod {

bool read_geometry(const int64_t *ints, cod_geometry &g);  // program_product.cpp

namespace {

enum { kBilinear = 0, kNearest = 1, kNearestCentre = 2 };
enum { kAverage = 0, kMaximumOf = 1, kAdaptive = 2, kAdaptiveMaximum = 3 };

bool is_map(const Operand &x) {
  return is_float(x) && x.ndim == 4 && (x.shape[3] == 1 || x.stride[3] == 1) &&
         x.shape[1] < 1 << 24 && x.shape[2] < 1 << 24;
}
bool check_maps(const Instruction &one) {
  return one.operand_count >= 2 && one.has(1) && is_map(one.operands[0]) &&
         is_map(one.operands[1]) && one.operands[0].shape[0] == one.operands[1].shape[0] &&
         one.operands[0].shape[3] == one.operands[1].shape[3];
}

template <typename F>
void over_lines(const Operand &y, int threads, const F &line) {
  const int64_t height = y.shape[1], each = y.shape[2] * y.shape[3];
  parallel_for(y.shape[0] * height, 1 + (1 << 13) / each, threads, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; item++) line(item / height, item % height);
  });
}

// Where an output pixel lies between two input pixels.
struct Between {
  int64_t low, high;
  float share;  // of the high one
};

struct Resize : Prepared {
  std::vector<Between> rows, columns;
};

std::vector<Between> places(int64_t out, int64_t in, int mode, bool aligned, double scale) {
  std::vector<Between> found((size_t)out);
  for (int64_t i = 0; i < out; i++) {
    const float step = (float)scale;
    if (mode != kBilinear) {
      const float at = mode == kNearest ? (float)i * step : ((float)i + 0.5f) * step;
      const int64_t low = std::clamp<int64_t>((int64_t)std::floor(at), 0, in - 1);
      found[i] = {low, low, 0.0f};
      continue;
    }
    float at = aligned ? (float)i * step : ((float)i + 0.5f) * step - 0.5f;
    at = at < 0.0f ? 0.0f : at;
    const int64_t low = std::clamp<int64_t>((int64_t)at, 0, in - 1);
    found[i] = {low, std::min(low + 1, in - 1), std::clamp(at - (float)low, 0.0f, 1.0f)};
  }
  return found;
}

bool check_resize(Instruction &one, const Build &) {
  if (!check_maps(one) || one.int_count != 2 || one.float_count != 2 || one.ints[0] < 0 ||
      one.ints[0] > kNearestCentre)
    return false;
  for (int i = 0; i < 2; i++)
    if (!(one.floats[i] >= 0.0 && one.floats[i] <= 1e6)) return false;
  auto found = std::make_unique<Resize>();
  const Operand &y = one.operands[0], &x = one.operands[1];
  const int mode = (int)one.ints[0];
  found->rows = places(y.shape[1], x.shape[1], mode, one.ints[1] != 0, one.floats[0]);
  found->columns = places(y.shape[2], x.shape[2], mode, one.ints[1] != 0, one.floats[1]);
  one.prepared = std::move(found);
  return true;
}

int32_t run_resize(const Instruction &one, const Run &run) {
  const auto &r = static_cast<const Resize &>(*one.prepared);
  const Operand &to = one.operands[0], &from = one.operands[1];
  const int64_t channels = to.shape[3], width = from.shape[2];
  const bool dense = channels == 1 ? from.stride[2] == 1 : from.stride[2] == channels;
  float *y = run.write<float>(to);
  const float *x = run.read<float>(from);
  bool failed = false;
  over_lines(to, run.threads, [&](int64_t b, int64_t row) {
    const Between &v = r.rows[row];
    const float *image = x + b * from.stride[0];
    const float *top = image + v.low * from.stride[1], *bottom = image + v.high * from.stride[1];
    float *out = y + b * to.stride[0] + row * to.stride[1];
    const auto &f = kernels().floats;
    int64_t pixel = from.stride[2];
    const float *line = top;
    if (v.share != 0.0f && v.low != v.high) {
      float *mixed = scratch(width * channels);
      if (!mixed) {
        __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
        return;
      }
      if (dense)
        f.mix(top, bottom, v.share, width * channels, mixed);
      else
        for (int64_t c = 0; c < width; c++)
          f.mix(top + c * pixel, bottom + c * pixel, v.share, channels, mixed + c * channels);
      line = mixed, pixel = channels;
    }
    for (int64_t c = 0; c < to.shape[2]; c++) {
      const Between &h = r.columns[c];
      const float *left = line + h.low * pixel, *right = line + h.high * pixel;
      float *own = out + c * to.stride[2];
      if (channels == 1)
        own[0] = left[0] + (right[0] - left[0]) * h.share;
      else if (h.share == 0.0f)
        std::memcpy(own, left, (size_t)channels * sizeof(float));
      else
        f.mix(left, right, h.share, channels, own);
    }
  });
  return failed ? COD_NO_MEMORY : COD_OK;
}

bool check_pool(Instruction &one, const Build &) {
  if (!check_maps(one) || one.int_count != 8 || one.ints[0] < 0 || one.ints[0] > kAdaptiveMaximum)
    return false;
  for (int i = 1; i < 7; i++)
    if (one.ints[i] < (i < 5 ? 1 : 0) || one.ints[i] > 1 << 20) return false;
  return true;
}

struct Span {
  int64_t begin, end, counted;
};

// Input pixels under output pixel i of an axis.
Span span_of(int64_t i, int64_t in, int64_t out, bool adaptive, int64_t kernel, int64_t stride,
             int64_t pad) {
  if (adaptive) {
    const int64_t begin = i * in / out, end = ((i + 1) * in + out - 1) / out;
    return {begin, end, end - begin};
  }
  const int64_t begin = i * stride - pad, end = std::min(begin + kernel, in + pad);
  return {std::max<int64_t>(begin, 0), std::min(end, in), end - begin};
}

// Columns of a window first, into one line for a row of outputs, then rows of that line.
int32_t run_pool(const Instruction &one, const Run &run) {
  const Operand &to = one.operands[0], &from = one.operands[1];
  const int64_t *s = one.ints, channels = to.shape[3], width = from.shape[2];
  const bool adaptive = s[0] >= kAdaptive, maximum = s[0] == kMaximumOf || s[0] == kAdaptiveMaximum;
  const bool dense = channels == 1 ? from.stride[2] == 1 : from.stride[2] == channels;
  float *y = run.write<float>(to);
  const float *x = run.read<float>(from);
  bool failed = false;
  over_lines(to, run.threads, [&](int64_t b, int64_t row) {
    const auto &f = kernels().floats;
    const int op = maximum ? kMaximum : kAdd;
    const Span v = span_of(row, from.shape[1], to.shape[1], adaptive, s[1], s[3], s[5]);
    float *line = scratch(width * channels);
    if (!line) {
      __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
      return;
    }
    std::fill_n(line, width * channels, maximum ? -INFINITY : 0.0f);
    for (int64_t i = v.begin; i < v.end; i++) {
      const float *own = x + b * from.stride[0] + i * from.stride[1];
      if (dense)
        f.binary(op, line, 1, own, 1, width * channels, line);
      else
        for (int64_t c = 0; c < width; c++)
          f.binary(op, line + c * channels, 1, own + c * from.stride[2], 1, channels,
                   line + c * channels);
    }
    // outputs from the c-th on, as many as have whole windows one after the other
    const auto gather = [&](int64_t c, int64_t count) {
      const Span h = span_of(c, width, to.shape[2], adaptive, s[2], s[4], s[6]);
      float *own = y + b * to.stride[0] + row * to.stride[1] + c * to.stride[2];
      const int64_t n = count * channels;
      std::fill_n(own, n, maximum ? -INFINITY : 0.0f);
      for (int64_t j = h.begin; j < h.end; j++)
        f.binary(op, own, 1, line + j * channels, 1, n, own);
      const int64_t inside = (v.end - v.begin) * (h.end - h.begin);
      const float divisor = (float)(s[7] ? v.counted * h.counted : inside);
      if (!maximum) f.binary(kDivide, own, 1, &divisor, 0, n, own);
    };
    int64_t first = 0, last = 0;  // those with whole windows
    const bool steps = !adaptive && s[4] == 1 && (to.shape[2] == 1 || to.stride[2] == channels);
    if (steps) {
      first = std::min(s[6], to.shape[2]);
      last = std::max(first, std::min(to.shape[2], width + s[6] - s[2] + 1));
    }
    for (int64_t c = 0; c < first; c++) gather(c, 1);
    if (last > first) gather(first, last - first);
    for (int64_t c = last; c < to.shape[2]; c++) gather(c, 1);
  });
  return failed ? COD_NO_MEMORY : COD_OK;
}

bool check_sample(Instruction &one, const Build &) {
  if (!check_maps(one) || one.operand_count != 3 || !one.has(2) || one.int_count != 1) return false;
  const Operand &y = one.operands[0], &grid = one.operands[2];
  return is_float(grid) && grid.ndim == 4 && grid.shape[0] == y.shape[0] &&
         grid.shape[1] == y.shape[1] && grid.shape[2] == y.shape[2] && grid.shape[3] == 2;
}

int32_t run_sample(const Instruction &one, const Run &run) {
  const Operand &to = one.operands[0], &from = one.operands[1], &grid = one.operands[2];
  const float *x = run.read<float>(from), *places = run.read<float>(grid);
  float *y = run.write<float>(to);
  const float height = (float)from.shape[1], width = (float)from.shape[2];
  const bool aligned = one.ints[0] != 0;
  const auto pixel = [aligned](float at, float size) {
    return aligned ? (at + 1.0f) * 0.5f * (size - 1.0f) : ((at + 1.0f) * size - 1.0f) * 0.5f;
  };
  over_lines(to, run.threads, [&](int64_t b, int64_t row) {
    for (int64_t c = 0; c < to.shape[2]; c++) {
      const float *at = places + b * grid.stride[0] + row * grid.stride[1] + c * grid.stride[2];
      const float px = pixel(at[0], width), py = pixel(at[grid.stride[3]], height);
      const float *corner[4];
      float share[4];
      int count = 0;
      if (py > -1.0f && py < height && px > -1.0f && px < width) {
        const float top = std::floor(py), left = std::floor(px), down = py - top, right = px - left;
        for (int i = 0; i < 4; i++) {
          const int64_t v = (int64_t)top + i / 2, h = (int64_t)left + i % 2;
          if (v < 0 || v >= from.shape[1] || h < 0 || h >= from.shape[2]) continue;
          corner[count] = x + b * from.stride[0] + v * from.stride[1] + h * from.stride[2];
          share[count++] = (i / 2 ? down : 1 - down) * (i % 2 ? right : 1 - right);
        }
      }
      kernels().blend(corner, share, count, to.shape[3],
                      y + b * to.stride[0] + row * to.stride[1] + c * to.stride[2]);
    }
  });
  return COD_OK;
}

struct Depthwise : Prepared {
  cod_geometry g;
  int64_t inner_begin, inner_end;  // pixels of a line whose taps all lie inside
};

bool check_depthwise(Instruction &one, const Build &) {
  auto found = std::make_unique<Depthwise>();
  cod_geometry &g = found->g;
  if (!check_maps(one) || one.operand_count != 4 || !one.has(2) || one.int_count != 14 ||
      !read_geometry(one.ints, g) || one.ints[13] < 0 || one.ints[13] >= kUnaryOps)
    return false;
  const Operand &y = one.operands[0], &x = one.operands[1], &w = one.operands[2];
  const int64_t taps = (int64_t)g.kernel_h * g.kernel_w;
  if (x.shape[0] != g.batch || x.shape[1] != g.in_h || x.shape[2] != g.in_w ||
      y.shape[1] != g.out_h || y.shape[2] != g.out_w || !is_float(w) || w.ndim != 2 ||
      w.shape[0] != taps || w.shape[1] != x.shape[3] || !is_dense(w) || taps > 1024 ||
      (one.has(3) && !is_vector(one.operands[3], x.shape[3])))
    return false;
  const int64_t reach = (int64_t)(g.kernel_w - 1) * g.dilation_w + 1;
  const int64_t room = g.in_w + g.pad_w - reach;
  found->inner_begin = std::min<int64_t>((g.pad_w + g.stride_w - 1) / g.stride_w, g.out_w);
  found->inner_end = room < 0 ? 0 : std::min(g.out_w, room / g.stride_w + 1);
  one.prepared = std::move(found);
  return true;
}

int32_t run_depthwise(const Instruction &one, const Run &run) {
  const auto &d = static_cast<const Depthwise &>(*one.prepared);
  const cod_geometry &g = d.g;
  const Operand &to = one.operands[0], &from = one.operands[1];
  const float *x = run.read<float>(from), *w = run.read<float>(one.operands[2]);
  const float *bias = one.has(3) ? run.read<float>(one.operands[3]) : nullptr;
  float *y = run.write<float>(to);
  const int64_t channels = to.shape[3];
  over_lines(to, run.threads, [&](int64_t b, int64_t oy) {
    const float *taps[1024], *weights[1024];
    // output pixels [begin, end) of the line, whose taps are all inside or left out
    const auto part = [&](int64_t begin, int64_t end) {
      int count = 0;
      for (int ky = 0; ky < g.kernel_h; ky++)
        for (int kx = 0; kx < g.kernel_w; kx++) {
          const int64_t v = oy * g.stride_h - g.pad_h + (int64_t)ky * g.dilation_h;
          const int64_t h = begin * g.stride_w - g.pad_w + (int64_t)kx * g.dilation_w;
          if (v < 0 || v >= g.in_h || h < 0 || h >= g.in_w) continue;
          taps[count] = x + b * from.stride[0] + v * from.stride[1] + h * from.stride[2];
          weights[count++] = w + (ky * g.kernel_w + kx) * channels;
        }
      DepthwiseLine line{};
      line.x = taps, line.weight = weights, line.bias = bias, line.taps = count;
      line.pixels = end - begin, line.x_step = g.stride_w * from.stride[2];
      line.y_step = to.stride[2];
      line.y = y + b * to.stride[0] + oy * to.stride[1] + begin * to.stride[2];
      kernels().depthwise(line, channels);
    };
    const int64_t last = std::max(d.inner_begin, d.inner_end);
    for (int64_t c = 0; c < d.inner_begin; c++) part(c, c + 1);
    if (d.inner_begin < d.inner_end) part(d.inner_begin, d.inner_end);
    for (int64_t c = last; c < g.out_w; c++) part(c, c + 1);
    if (one.ints[13] != kCopyOp)
      for (int64_t c = 0; c < g.out_w; c++) {
        float *own = y + b * to.stride[0] + oy * to.stride[1] + c * to.stride[2];
        kernels().floats.unary((int)one.ints[13], 0.0f, 0.0f, own, channels, own);
      }
  });
  return COD_OK;
}

}  // namespace

extern const Kind kKind_resize, kKind_pool, kKind_sample, kKind_depthwise;
const Kind kKind_resize{"resize", 1, check_resize, run_resize};
const Kind kKind_pool{"pool", 1, check_pool, run_pool};
const Kind kKind_sample{"sample", 1, check_sample, run_sample};
const Kind kKind_depthwise{"depthwise", 1, check_depthwise, run_depthwise};

}  // namespace cod
