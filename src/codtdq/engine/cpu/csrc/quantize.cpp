// Fused activation quantizer: rows of floats in, codes and ranges out, in one pass over memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <vector>

#include "kernels.h"
#include "rows.h"

namespace {

using cod::kernels;

using cod::kRowBlock;
using cod::RowReader;

void dequantize(const int8_t *codes, float step, int64_t n, float *x_hat) {
  for (int64_t i = 0; i < n; i++) x_hat[i] = (float)codes[i] * step;
}

// Rows are whole, so the groups of a block follow each other in every result.
template <typename T>
void copy_lanes(const T *from, int lanes, T *to) {
  std::memcpy(to, from, (size_t)lanes * sizeof(T));
}

void store(const cod::GroupResult &result, int lanes, int64_t at, const cod_quantized &out) {
  if (out.sums) copy_lanes(result.sums, lanes, out.sums + at);
  if (out.step) copy_lanes(result.step, lanes, out.step + at);
  if (out.radius) copy_lanes(result.radius, lanes, out.radius + at);
  if (out.active)
    for (int l = 0; l < lanes; l++) out.active[at + l] = (uint8_t)result.active[l];
  if (out.infeasible)
    for (int l = 0; l < lanes; l++) out.infeasible[at + l] = (uint8_t)result.infeasible[l];
}

// count: groups of a row.
bool has_room(const cod_quantized &out, int64_t rows, int64_t channels, int64_t count,
              int64_t padded) {
  const bool grouped = out.step || out.radius || out.active || out.infeasible || out.sums;
  return (!out.codes ||
          (out.code_stride >= padded && cod::fills(out.code_bytes, rows, out.code_stride))) &&
         (!grouped || cod::fills(out.group_count, rows, count)) &&
         (!out.x_hat || cod::fills(out.value_count, rows, channels));
}

// The largest magnitudes of rows that follow each other: short ones count as one wide row.
void dense_magnitudes(const float *x, int64_t rows, int64_t channels, bool each, int32_t *best) {
  constexpr int64_t kWide = 256;
  const auto &k = kernels();
  if (!each) return k.magnitudes(x, rows * channels, false, best);
  const int64_t together = kWide / channels;
  if (together > 1 && rows >= 2 * together) {
    int32_t found[kWide] = {};
    for (; rows >= together; rows -= together, x += together * channels)
      k.magnitudes(x, together * channels, true, found);
    for (int64_t i = 0; i < together * channels; i++)
      best[i % channels] = std::max(best[i % channels], found[i]);
  }
  for (; rows > 0; rows--, x += channels) k.magnitudes(x, channels, true, best);
}

}  // namespace

extern "C" int32_t cod_quantize_groups(const cod_rows *x, const cod_quant_spec *spec,
                                       const cod_quantized *out, int32_t threads) try {
  if (!x || !out || !spec || !cod::fits(*spec) || !cod::holds(*x) ||
      x->channels > cod::kMostChannels)
    return COD_BAD_ARGUMENT;
  const int64_t channels = x->channels, group = spec->group;
  const int64_t count = (channels + group - 1) / group, padded = count * group;
  if (!has_room(*out, x->rows, channels, count, padded)) return COD_BAD_ARGUMENT;
  const auto &k = kernels();
  const cod::Plan plan = cod::plan_of(*spec);
  auto body = [&](int64_t first, int64_t last) {
    RowReader reader(*x, spec->pre, padded);
    std::vector<int8_t> scratch(out->codes ? 0 : (size_t)(k.lanes * group));
    const float *rows[kRowBlock];
    const int32_t tail = (int32_t)(channels - (count - 1) * group);  // of a row: its last group
    cod::GroupBlock block;
    cod::GroupResult result;
    for (int64_t begin = first; begin < last; begin += kRowBlock) {
      const int64_t end = begin + kRowBlock < last ? begin + kRowBlock : last;
      reader.read(begin, end, rows);
      const int64_t total = (end - begin) * count;
      int64_t row = 0, g = 0;  // of the next group
      const float *values = rows[0];
      int8_t *codes = out->codes ? out->codes + begin * out->code_stride : nullptr;
      for (int64_t at = 0; at < total; at += k.lanes) {
        const int lanes = (int)(total - at < k.lanes ? total - at : k.lanes);
        block.lanes = lanes;
        for (int l = 0; l < lanes; l++) {
          block.values[l] = values;
          block.codes[l] = codes ? codes : scratch.data() + l * group;
          block.valid[l] = (int32_t)group;
          values += group;
          if (codes) codes += group;
          if (++g < count) continue;
          block.valid[l] = tail;
          g = 0;
          if (++row < end - begin) values = rows[row];
          if (codes) codes += out->code_stride - padded;
        }
        k.quantize(block, plan, result);
        store(result, lanes, begin * count + at, *out);
        if (out->x_hat)
          for (int l = 0; l < lanes; l++) {
            const int64_t i = begin * count + at + l;
            dequantize(block.codes[l], result.step[l], block.valid[l],
                       out->x_hat + i / count * channels + i % count * group);
          }
      }
      if (out->codes && out->code_stride > padded)
        for (int64_t r = begin; r < end; r++)
          std::memset(out->codes + r * out->code_stride + padded, 0, out->code_stride - padded);
    }
  };
  int64_t grain = 8192 / (padded > 0 ? padded : 1) / kRowBlock * kRowBlock;
  cod::parallel_for(x->rows, grain < kRowBlock ? kRowBlock : grain, threads, body);
  return COD_OK;
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}

extern "C" int32_t cod_absmax(const cod_rows *x, int32_t per_channel, float *out, int64_t count,
                              int32_t threads) try {
  if (!x || !out || !cod::holds(*x) || count < (per_channel ? x->channels : 1))
    return COD_BAD_ARGUMENT;
  const int64_t channels = x->channels, width = per_channel ? channels : 1;
  const int64_t pieces = threads > 1 ? 4 * (int64_t)std::min(threads, cod::kMostThreads) : 1;
  const int64_t grain = (x->rows + pieces - 1) / pieces;
  // magnitudes as integers: a NaN is larger than infinity, and both are found at the end
  std::vector<int32_t> found((size_t)(pieces * width), 0);
  cod::parallel_for(pieces, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; piece++) {
      const int64_t begin = piece * grain, end = begin + grain < x->rows ? begin + grain : x->rows;
      if (begin >= end) continue;
      int32_t *best = &found[piece * width];
      if (x->channel_stride == 1 && x->row_stride == channels) {
        dense_magnitudes(x->data + begin * channels, end - begin, channels, per_channel != 0, best);
      } else if (x->channel_stride == 1) {
        for (int64_t r = begin; r < end; r++)
          kernels().magnitudes(x->data + r * x->row_stride, channels, per_channel != 0, best);
      } else {
        for (int64_t c = 0; c < channels; c++) {
          const float *column = x->data + c * x->channel_stride;
          int32_t *one = best + (per_channel ? c : 0);
          if (x->row_stride == 1)
            kernels().magnitudes(column + begin, end - begin, false, one);
          else
            for (int64_t r = begin; r < end; r++)
              kernels().magnitudes(column + r * x->row_stride, 1, false, one);
        }
      }
    }
  });
  for (int64_t c = 0; c < width; c++) {
    int32_t best = 0;
    for (int64_t piece = 0; piece < pieces; piece++) {
      const int32_t one = found[piece * width + c];
      best = one > best ? one : best;
    }
    std::memcpy(out + c, &best, sizeof best);
    if (best >= 0x7f800000) out[c] = NAN;
  }
  return COD_OK;
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}
