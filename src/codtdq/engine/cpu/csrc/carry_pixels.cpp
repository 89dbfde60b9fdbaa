// Encoder of carriers for groups of pixels of a channel: what depthwise convolutions contract. The
// first pass finds the steps, the second one writes bytes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <vector>

#include "rows.h"

namespace {

using cod::kernels;

constexpr int64_t kVector = 16;      // floats; no instruction set has more
constexpr int64_t kPiece = 1 << 15;  // values; less is not worth another thread

class Pixels {
 public:
  Pixels(const cod_rows &x, const cod_carry_spec &spec, const cod::CarryPlan &plan,
         const cod_carried &out)
      : x_(x), spec_(spec), plan_(plan), out_(out), channels_(x.channels) {
    positions_ = out.unit_rows;
    size_ = std::min<int64_t>(spec.group, positions_);
    count_ = (positions_ + size_ - 1) / size_;
    groups_ = x.rows / positions_ * count_;
    own_ = out.unit_stride != 0;
    step_.resize((size_t)(groups_ * channels_ + kVector));
    least_.resize(step_.size());
  }

  int64_t groups() const { return groups_; }
  int64_t grain() const { return kPiece / (size_ * channels_) + 1; }

  void measure(int64_t first, int64_t last) {
    cod::RowReader reader(x_, COD_PRE_NONE, channels_, size_, &spec_.transform);
    const float *rows[COD_MAX_GROUP];
    for (int64_t g = first; g < last; g++) {
      const int n = read(reader, g, rows);
      kernels().carry_pixel_steps(rows, n, channels_, plan_, &step_[g * channels_],
                                  &least_[g * channels_]);
    }
  }

  // The unit of every channel of every image, or the same for all channels.
  void share() {
    const int64_t images = groups_ / count_;
    units_.assign((size_t)(images * channels_ + kVector), 0.0f);
    for (int64_t image = 0; image < images; image++) {
      float *unit = &units_[image * channels_];
      for (int64_t g = image * count_; g < (image + 1) * count_; g++)
        for (int64_t c = 0; c < channels_; c++) unit[c] = larger(unit[c], step_[g * channels_ + c]);
      float top = 0.0f;
      for (int64_t c = 0; c < channels_ && !own_; c++) top = larger(top, unit[c]);
      for (int64_t c = 0; c < channels_; c++)
        unit[c] = (own_ ? unit[c] : top) * (1.0f / plan_.most);
      if (own_)
        std::memcpy(out_.unit + image * out_.unit_stride, unit, (size_t)channels_ * sizeof(float));
      else
        out_.unit[image] = unit[0];
    }
  }

  void encode(int64_t first, int64_t last) const {
    const auto &k = kernels();
    cod::RowReader reader(x_, COD_PRE_NONE, channels_, size_, &spec_.transform);
    const float *rows[COD_MAX_GROUP];
    const int64_t each = channels_ + kVector;
    std::vector<float> memory((size_t)(4 * each));
    const cod::CarryTable table{&memory[0], &memory[each], &memory[2 * each], &memory[3 * each]};
    for (int64_t g = first; g < last; g++) {
      const int n = read(reader, g, rows);
      const float *units = &units_[g / count_ * channels_];
      k.carry_table(&step_[g * channels_], &least_[g * channels_], nullptr, units, channels_, plan_,
                    table);
      if (plan_.trials > 1) k.carry_try_pixels(rows, n, channels_, units, plan_, table);
      for (int64_t c = 0; c < channels_; c++)
        if (units[c] != units[c])
          table.inverse[c] = table.low[c] = table.high[c] = table.m[c] = 0.0f;
      const int64_t row = g / count_ * positions_ + g % count_ * size_;
      int8_t *to = out_.data + row * out_.stride;
      k.carry_each(rows, n, channels_, true, table, to, out_.stride);
      for (int64_t c = 0; c < channels_ && out_.multiplier; c++)
        out_.multiplier[g * channels_ + c] = (uint8_t)table.m[c];
    }
  }

 private:
  static float larger(float a, float b) { return a != a || a > b ? a : b; }  // a NaN stays

  // Rows of group g; returns how many.
  int read(cod::RowReader &reader, int64_t g, const float **rows) const {
    const int64_t inside = g % count_ * size_, begin = g / count_ * positions_ + inside;
    const int64_t n = std::min(size_, positions_ - inside);
    reader.read(begin, begin + n, rows);
    return (int)n;
  }

  const cod_rows &x_;
  const cod_carry_spec &spec_;
  const cod::CarryPlan &plan_;
  const cod_carried &out_;
  const int64_t channels_;
  int64_t positions_, size_, count_, groups_;
  bool own_;
  std::vector<float> step_, least_, units_;
};

}  // namespace

extern "C" int32_t cod_carry_pixels(const cod_rows *x, const cod_carry_spec *spec,
                                    const cod_carried *out, int32_t threads) try {
  if (!x || !out || !cod::fits(spec) || !cod::holds(*x) || x->channels > cod::kMostChannels ||
      out->unit_rows < 1 || x->rows % out->unit_rows ||
      out->stride < cod_carrier_depth(x->channels) ||
      (out->unit_stride && out->unit_stride < x->channels) ||
      !cod::fills(out->bytes, x->rows, out->stride) ||
      !cod::holds(*out, x->rows, cod_carrier_depth(x->channels)) ||
      !cod::holds(spec->transform, x->channels))
    return COD_BAD_ARGUMENT;
  if (x->rows == 0) return COD_OK;
  const int64_t images = x->rows / out->unit_rows, pieces = cod::parts(out->unit_rows, spec->group);
  if (out->multiplier && !cod::fills(out->multiplier_count, images, pieces, x->channels))
    return COD_BAD_ARGUMENT;
  const cod::CarryPlan plan = cod::carry_plan(*spec);
  Pixels work(*x, *spec, plan, *out);
  cod::parallel_for(work.groups(), work.grain(), threads,
                    [&](int64_t first, int64_t last) { work.measure(first, last); });
  work.share();
  cod::parallel_for(work.groups(), work.grain(), threads,
                    [&](int64_t first, int64_t last) { work.encode(first, last); });
  return COD_OK;
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}
