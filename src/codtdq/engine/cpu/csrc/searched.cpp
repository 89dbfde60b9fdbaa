// Groups whose range is searched for: 4-bit codes, a zero-point, an E4M3 scale in multiples of a
// unit. Where the unit is not given, an image is passed over twice: its largest step gives the
// unit.
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels.h"

namespace {

using cod::kernels;

constexpr int kRowBlock = 16;  // rows of token groups that are read at once
constexpr float kLargestE4M3 = 448.0f, kTiny = 1e-30f;
constexpr float kLargestUnit = 1e27f;  // the reciprocal of no step is denormal

// Rows as contiguous floats, transformed, the last value repeated up to `padded`.
class Reader {
 public:
  // contiguous: rows follow each other without gaps.
  Reader(const cod_rows &x, const cod_transform &transform, int64_t padded, int64_t most,
         bool contiguous)
      : x_(x),
        transform_(transform),
        padded_(padded),
        changed_(transform.shift || transform.scale || transform.order || transform.hadamard),
        copy_(changed_ || x.channel_stride != 1 || padded != x.channels ||
              (contiguous && x.row_stride != x.channels)) {
    if (!copy_) return;
    buffer_.resize((size_t)(most * padded));
    if (x.channel_stride != 1) strided_.resize((size_t)(most * x.channels));
  }

  bool copies() const { return copy_; }

  // Pointers to rows [begin, end), of which there may be `most`.
  void read(int64_t begin, int64_t end, const float **rows) {
    for (int64_t r = begin; r < end; r++) rows[r - begin] = x_.data + r * x_.row_stride;
    if (!copy_) return;
    const int64_t n = end - begin, channels = x_.channels;
    if (x_.channel_stride != 1) {
      for (int64_t c = 0; c < channels; c++) {
        const float *column = x_.data + begin * x_.row_stride + c * x_.channel_stride;
        for (int64_t i = 0; i < n; i++) strided_[i * channels + c] = column[i * x_.row_stride];
      }
      for (int64_t i = 0; i < n; i++) rows[i] = &strided_[i * channels];
    }
    for (int64_t i = 0; i < n; i++) {
      float *row = &buffer_[i * padded_];
      kernels().transform(rows[i], channels, transform_, row);
      for (int64_t c = channels; c < padded_; c++) row[c] = row[channels - 1];
      rows[i] = row;
    }
  }

 private:
  const cod_rows &x_;
  const cod_transform &transform_;
  int64_t padded_;
  bool changed_, copy_;
  std::vector<float> buffer_, strided_;
};

// The largest of several threads' results; floats that are not negative are in the order of their
// bits, and a NaN comes last.
class Largest {
 public:
  void add(float value) {
    uint32_t bits, before = bits_.load();
    std::memcpy(&bits, &value, sizeof bits);
    while (bits > before && !bits_.compare_exchange_weak(before, bits)) {
    }
  }
  float value() const {
    const uint32_t bits = bits_.load();
    float found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
  }

 private:
  std::atomic<uint32_t> bits_{0};
};

cod::SearchPlan plan_of(const cod_search_spec &spec, int64_t size) {
  cod::SearchPlan w{};
  w.levels = (float)((1 << spec.bits) - 1);
  w.group = (int)size, w.trials = spec.trials, w.zero_point = spec.zero_point;
  w.zero_weight = spec.zero_weight;
  return w;
}

void take_unit(float unit, cod::SearchPlan &w) { w.unit = unit, w.given = true; }

// The unit of an image's scales; false where a value is not finite: then nothing has a code.
bool set_unit(float largest, cod::SearchPlan &w) {
  const float unit = largest / kLargestE4M3;
  w.unit = unit > kTiny ? unit : kTiny;
  w.divide = largest > 0x1p100f;  // 1 / step might be denormal
  return std::isfinite(largest);
}

bool usable(const cod_rows *x, int64_t images, const cod_search_spec *spec,
            const cod_quantized *out) {
  return x && spec && out && images >= 1 && x->rows >= 0 && x->rows % images == 0 &&
         x->channels >= 1 && (x->data || x->rows == 0) && spec->bits >= 2 && spec->bits <= 7 &&
         spec->group >= 1 && spec->group <= COD_MAX_GROUP && spec->trials >= 1 &&
         spec->trials <= COD_MAX_TRIALS &&
         (spec->unit == 0 || (spec->unit >= kTiny && spec->unit <= kLargestUnit)) &&
         spec->zero_point >= COD_ZERO_NONE &&
         (spec->zero_point < COD_ZERO_WIDE ||
          (spec->zero_point == COD_ZERO_WIDE && spec->bits <= 4));
}

cod_rows image_of(const cod_rows &x, int64_t image, int64_t positions) {
  cod_rows one = x;
  one.data = x.data + image * positions * x.row_stride;
  one.rows = positions;
  return one;
}

void fill(float *to, int64_t n, float value) {
  for (int64_t i = 0; to && i < n; i++) to[i] = value;
}

}  // namespace

extern "C" int32_t cod_search_tokens(const cod_rows *x, int64_t images, const cod_search_spec *spec,
                                     const cod_quantized *out, int32_t threads) {
  if (!usable(x, images, spec, out)) return COD_BAD_ARGUMENT;
  const int64_t channels = x->channels, size = spec->group < channels ? spec->group : channels;
  const int64_t count = (channels + size - 1) / size, padded = count * size;
  const int64_t stored = count > 1 || !out->codes ? size : out->code_stride;
  if (out->codes && (stored < size || out->code_stride != count * stored)) return COD_BAD_ARGUMENT;
  const int64_t positions = x->rows / images;
  const int64_t tail = channels - (count - 1) * size;  // of a row: its last group
  const auto &k = kernels();
  int64_t grain = 8192 / padded / kRowBlock * kRowBlock;
  grain = grain < kRowBlock ? kRowBlock : grain;
  for (int64_t image = 0; image < images; image++) {
    const cod_rows rows_of = image_of(*x, image, positions);
    const int64_t row0 = image * positions;
    cod::SearchPlan w = plan_of(*spec, size);
    Largest largest;
    // visit(block, first group) for the groups of rows [first, last), as many at once as a kernel
    // takes. The first pass goes backwards: where whoever wrote the rows, and the second pass, are,
    // rows are still in the cache.
    auto walk = [&](int64_t first, int64_t last, bool backwards, const auto &visit) {
      Reader reader(rows_of, spec->transform, padded, kRowBlock, true);
      const float *rows[kRowBlock];
      cod::GroupBlock block;
      const int64_t length = reader.copies() ? kRowBlock : last - first;
      auto place = [&](int64_t i, int64_t n) { return backwards ? n - 1 - i : i; };
      const int64_t pieces = (last - first + length - 1) / length;
      for (int64_t piece = 0; piece < pieces; piece++) {
        const int64_t begin = first + place(piece, pieces) * length;
        const int64_t end = begin + length < last ? begin + length : last;
        reader.read(begin, reader.copies() ? end : begin + 1, rows);
        const int64_t total = (end - begin) * count, blocks = (total + k.lanes - 1) / k.lanes;
        for (int64_t i = 0; i < blocks; i++) {
          const int64_t at = place(i, blocks) * k.lanes;
          block.lanes = (int)(total - at < k.lanes ? total - at : k.lanes);
          for (int l = 0; l < block.lanes; l++) block.values[l] = rows[0] + (at + l) * size;
          visit(block, begin * count + at);
        }
      }
    };
    if (spec->unit > 0)
      take_unit(spec->unit, w);
    else
      cod::parallel_for(positions, grain, threads, [&](int64_t first, int64_t last) {
        walk(first, last, true, [&](const cod::GroupBlock &block, int64_t) {
          largest.add(k.widest(block, w, largest.value()));
        });
      });
    if (!w.given && !set_unit(largest.value(), w)) {
      if (out->codes)
        std::memset(out->codes + row0 * out->code_stride, 0,
                    (size_t)(positions * out->code_stride));
      fill(out->step ? out->step + row0 * count : nullptr, positions * count, NAN);
      fill(out->x_hat ? out->x_hat + row0 * channels : nullptr, positions * channels, NAN);
      if (out->sums) std::memset(out->sums + row0 * count, 0, (size_t)(positions * count) * 4);
      continue;
    }
    cod::parallel_for(positions, grain, threads, [&](int64_t first, int64_t last) {
      std::vector<int8_t> scratch(out->codes ? 0 : (size_t)(k.lanes * size));
      cod::SearchResult result;
      walk(first, last, false, [&](cod::GroupBlock &block, int64_t at) {
        const int64_t first_group = row0 * count + at;
        int8_t *codes = out->codes ? out->codes + first_group * stored : scratch.data();
        for (int l = 0; l < block.lanes; l++) block.codes[l] = codes + l * stored;
        k.search(block, w, result);
        for (int l = 0; l < block.lanes && (tail < size || stored > size || out->x_hat); l++) {
          const int64_t group = first_group + l, g = group % count;
          const int64_t valid = g + 1 < count ? size : tail;
          if (valid < size) {  // what was repeated has no code
            result.sums[l] = 0;
            for (int64_t i = 0; i < valid; i++) result.sums[l] += block.codes[l][i];
          }
          std::memset(block.codes[l] + valid, 0, (size_t)(stored - valid));
          if (out->x_hat)
            k.dequantize(block.codes[l], 0, valid, (int)size, &result.step[l],
                         out->x_hat + group / count * channels + g * size);
        }
        if (out->step) std::memcpy(out->step + first_group, result.step, (size_t)block.lanes * 4);
        if (out->sums) std::memcpy(out->sums + first_group, result.sums, (size_t)block.lanes * 4);
      });
    });
  }
  return COD_OK;
}

extern "C" int32_t cod_search_pixels(const cod_rows *x, int64_t images, const cod_search_spec *spec,
                                     const cod_quantized *out, int32_t threads) {
  if (!usable(x, images, spec, out)) return COD_BAD_ARGUMENT;
  const int64_t channels = x->channels, positions = x->rows / images;
  if (out->codes && out->code_stride < channels) return COD_BAD_ARGUMENT;
  if (positions == 0) return COD_OK;
  const int64_t size = spec->group < positions ? spec->group : positions;
  const int64_t count = (positions + size - 1) / size;
  const auto &k = kernels();
  int64_t grain = 8192 / (size * channels);
  grain = grain < 1 ? 1 : grain;
  for (int64_t image = 0; image < images; image++) {
    const cod_rows rows_of = image_of(*x, image, positions);
    const int64_t row0 = image * positions, group0 = image * count;
    cod::SearchPlan w = plan_of(*spec, size);
    Largest largest;
    // visit(rows, group, valid) for groups [first, last); a short group repeats its last pixel
    auto walk = [&](int64_t first, int64_t last, bool backwards, const auto &visit) {
      Reader reader(rows_of, spec->transform, channels, size, false);
      const float *rows[COD_MAX_GROUP];
      for (int64_t i = first; i < last; i++) {
        const int64_t g = backwards ? last - 1 - (i - first) : i;
        const int64_t begin = g * size, end = begin + size < positions ? begin + size : positions;
        reader.read(begin, end, rows);
        for (int64_t i = end - begin; i < size; i++) rows[i] = rows[end - begin - 1];
        visit(rows, g, (int)(end - begin));
      }
    };
    if (spec->unit > 0)
      take_unit(spec->unit, w);
    else
      cod::parallel_for(count, grain, threads, [&](int64_t first, int64_t last) {
        walk(first, last, true, [&](const float *const *rows, int64_t, int) {
          largest.add(k.widest_of_pixels(rows, channels, w));
        });
      });
    if (!w.given && !set_unit(largest.value(), w)) {
      if (out->codes)
        std::memset(out->codes + row0 * out->code_stride, 0,
                    (size_t)(positions * out->code_stride));
      fill(out->step ? out->step + group0 * channels : nullptr, count * channels, NAN);
      fill(out->x_hat ? out->x_hat + row0 * channels : nullptr, positions * channels, NAN);
      continue;
    }
    cod::parallel_for(count, grain, threads, [&](int64_t first, int64_t last) {
      std::vector<int8_t> scratch(out->codes ? 0 : (size_t)(size * channels));
      std::vector<float> steps(out->step ? 0 : (size_t)channels);
      walk(first, last, false, [&](const float *const *rows, int64_t g, int valid) {
        int8_t *codes[COD_MAX_GROUP];
        for (int i = 0; i < valid; i++)
          codes[i] = out->codes ? out->codes + (row0 + g * size + i) * out->code_stride
                                : scratch.data() + i * channels;
        float *step = out->step ? out->step + (group0 + g) * channels : steps.data();
        k.search_pixels(rows, channels, w, valid, codes, step);
        for (int i = 0; i < valid; i++) {
          if (out->codes)
            std::memset(codes[i] + channels, 0, (size_t)(out->code_stride - channels));
          if (out->x_hat)
            k.dequantize_each(codes[i], channels, step,
                              out->x_hat + (row0 + g * size + i) * channels);
        }
      });
    });
  }
  return COD_OK;
}
