// Encoders of carriers: rows of floats in, signed bytes and units out, in one pass over memory. A
// block of rows stays in the nearest cache between the look at its ranges and the bytes.
#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <vector>

#include "rows.h"

namespace {

using cod::kernels;

constexpr int64_t kNear = 4096;      // floats of a block of rows
constexpr int64_t kMostRows = 128;   // of a block
constexpr int64_t kVector = 16;      // floats; no instruction set has more
constexpr int64_t kPiece = 1 << 15;  // values; less is not worth another thread

// width: channels of a row of carriers.
bool usable(const cod_rows *x, const cod_carried *out, int64_t width) {
  return x && out && cod::holds(*x) && x->channels <= cod::kMostChannels && out->unit_rows >= 1 &&
         out->stride >= cod_carrier_depth(width) &&
         cod::fills(out->bytes, x->rows, out->stride) &&  // rows are padded to their stride
         cod::holds(*out, x->rows, cod_carrier_depth(width));
}

// multiplier: as many as there are, where they are asked for.
bool has_room(const cod_carried &out, int64_t rows, int64_t groups) {
  return !out.multiplier || cod::fills(out.multiplier_count, rows, groups);
}

// Entries of a table for n groups or channels, with room for a whole vector more.
struct Table {
  std::unique_ptr<float[]> memory;
  cod::CarryTable view;
  explicit Table(int64_t n) : memory(new float[(size_t)(4 * (n + kVector))]) {
    const int64_t each = n + kVector;
    float *at = memory.get();
    view = {at, at + each, at + 2 * each, at + 3 * each};
  }
};

// The largest step; NaN if one is NaN. Steps are not negative: their bits are in the same order,
// and those of a NaN are the largest.
float largest(const float *step, int64_t n) {
  int32_t top = 0;
  for (int64_t i = 0; i < n; i++) {
    int32_t bits;
    std::memcpy(&bits, step + i, sizeof bits);
    top = std::max(top, bits);
  }
  float found;
  std::memcpy(&found, &top, sizeof found);
  return found;
}

class Groups {
 public:
  Groups(const cod_rows &x, const cod::CarryPlan &plan, const cod_transform *transform,
         const cod_carried &out)
      : x_(x),
        plan_(plan),
        out_(out),
        transform_(transform),
        group_(plan.range.spec.group),
        pre_(plan.range.spec.pre),
        count_((x.channels + group_ - 1) / group_),
        padded_(count_ * group_),
        most_(std::min(std::max<int64_t>(kNear / padded_, 1), kMostRows)) {}

  int64_t block() const { return most_; }
  int64_t count() const { return count_; }

  // Steps of groups, row by row, and what follows from them.
  struct Steps {
    std::unique_ptr<float[]> memory;
    float *step, *least, *units;
    std::unique_ptr<int32_t[]> bounded;
    explicit Steps(int64_t n)
        : memory(new float[(size_t)(3 * (n + cod::kMaxLanes))]),
          step(memory.get()),
          least(step + n + cod::kMaxLanes),
          units(least + n + cod::kMaxLanes),
          bounded(new int32_t[(size_t)(n + cod::kMaxLanes)]) {}
  };

  // Rows with units of their own.
  void alone(int64_t first, int64_t last) const {
    Rows rows(*this);
    Steps found(most_ * count_);
    Table table(most_ * count_);
    for (int64_t begin = first; begin < last; begin += most_) {
      const int64_t end = std::min(begin + most_, last);
      rows.read(begin, end);
      look(rows, found, 0);
      if (count_ == 1)
        for (int64_t i = 0; i < end - begin; i++)
          found.units[i] = out_.unit[begin + i] = found.step[i] * (1.0f / plan_.most);
      for (int64_t r = begin; r < end && count_ > 1; r++) {
        const int64_t at = (r - begin) * count_;
        out_.unit[r] = largest(&found.step[at], count_) * (1.0f / plan_.most);
        std::fill_n(&found.units[at], count_, out_.unit[r]);
      }
      write(rows, begin, end, found, 0, table);
    }
  }

  // Steps of rows [first, last), whose place in `found` is that of all rows.
  void measure(int64_t first, int64_t last, Steps &found) const {
    Rows rows(*this);
    for (int64_t begin = first; begin < last; begin += most_) {
      rows.read(begin, std::min(begin + most_, last));
      look(rows, found, begin * count_);
    }
  }

  // Units of images; then bytes of rows [first, last).
  void share(Steps &found) const {
    for (int64_t r = 0; r < x_.rows; r += out_.unit_rows) {
      const int64_t at = r * count_, n = std::min(out_.unit_rows, x_.rows - r) * count_;
      float &unit = out_.unit[r / out_.unit_rows];
      unit = largest(&found.step[at], n) * (1.0f / plan_.most);
      std::fill_n(&found.units[at], n, unit);
    }
  }
  void encode(int64_t first, int64_t last, const Steps &found) const {
    Rows rows(*this);
    Table table(most_ * count_);
    for (int64_t begin = first; begin < last; begin += most_) {
      const int64_t end = std::min(begin + most_, last);
      rows.read(begin, end);
      write(rows, begin, end, found, begin * count_, table);
    }
  }

 private:
  // A block of rows, and their groups in blocks.
  struct Rows {
    const Groups &all;
    cod::RowReader reader;
    const float *of[kMostRows];
    int64_t groups = 0;
    const float *listed = nullptr;  // where the groups of a whole block that is listed begin
    int64_t count;
    std::unique_ptr<cod::GroupBlock[]> blocks;

    explicit Rows(const Groups &g)
        : all(g),
          reader(g.x_, g.pre_, g.padded_, g.most_, g.transform_),
          count((g.most_ * g.count_ + cod::kMaxLanes - 1) / cod::kMaxLanes),
          blocks(new cod::GroupBlock[(size_t)count]) {
      for (int64_t i = 0; i < count; i++)
        std::fill_n(blocks[i].valid, cod::kMaxLanes, (int32_t)g.group_);
      const int32_t tail = (int32_t)(g.x_.channels - (g.count_ - 1) * g.group_);
      for (int64_t i = g.count_ - 1; i < count * cod::kMaxLanes && tail < g.group_; i += g.count_)
        blocks[i / cod::kMaxLanes].valid[i % cod::kMaxLanes] = tail;
    }

    void read(int64_t begin, int64_t end) {
      reader.read(begin, end, of);
      groups = (end - begin) * all.count_;
      bool together = true;  // groups follow each other, whatever their rows
      for (int64_t r = 1; r < end - begin; r++) together &= of[r] == of[r - 1] + all.padded_;
      if (together) return list(of[0]);
      listed = nullptr;
      int64_t row = 0, left = all.count_;  // groups of the row
      const float *values = of[0];
      for (int64_t at = 0; at < groups; at += cod::kMaxLanes) {
        cod::GroupBlock &block = blocks[at / cod::kMaxLanes];
        block.lanes = (int)std::min<int64_t>(groups - at, cod::kMaxLanes);
        for (int l = 0; l < block.lanes;) {
          const int stop = (int)std::min<int64_t>(l + left, block.lanes);
          left -= stop - l;
          for (; l < stop; l++, values += all.group_) block.values[l] = values;
          if (left || ++row == end - begin) continue;
          values = of[row], left = all.count_;
        }
        std::fill(block.values + block.lanes, block.values + cod::kMaxLanes, block.values[0]);
      }
    }

    void list(const float *values) {
      if (values == listed && groups == all.most_ * all.count_) return;  // as the block before
      listed = groups == all.most_ * all.count_ ? values : nullptr;
      for (int64_t at = 0; at < groups; at += cod::kMaxLanes) {
        cod::GroupBlock &block = blocks[at / cod::kMaxLanes];
        block.lanes = (int)std::min<int64_t>(groups - at, cod::kMaxLanes);
        for (int l = 0; l < block.lanes; l++) block.values[l] = values + (at + l) * all.group_;
        std::fill(block.values + block.lanes, block.values + cod::kMaxLanes, block.values[0]);
      }
    }
  };

  // Steps of rows, from `to` on.
  void look(const Rows &rows, Steps &found, int64_t to) const {
    cod::GroupSteps steps;
    for (int64_t at = 0; at < rows.groups; at += cod::kMaxLanes) {
      const cod::GroupBlock &block = rows.blocks[at / cod::kMaxLanes];
      kernels().carry_steps(block, plan_, steps);
      std::copy_n(steps.step, block.lanes, &found.step[to + at]);
      if (plan_.asymmetric) std::copy_n(steps.least, block.lanes, &found.least[to + at]);
      if (plan_.projected) std::copy_n(steps.bounded, block.lanes, &found.bounded[to + at]);
    }
  }

  // Bytes of rows [begin, end), whose steps begin at `from`.
  void write(const Rows &rows, int64_t begin, int64_t end, const Steps &found, int64_t from,
             Table &table) const {
    const auto &k = kernels();
    const cod::CarryTable &t = table.view;
    const float *units = &found.units[from];
    k.carry_table(&found.step[from], &found.least[from],
                  plan_.projected ? &found.bounded[from] : nullptr, units, rows.groups, plan_, t);
    for (int64_t at = 0; at < rows.groups && plan_.trials > 1; at += cod::kMaxLanes)
      k.carry_try(rows.blocks[at / cod::kMaxLanes], units + at, plan_,
                  {t.inverse + at, t.low + at, t.high + at, t.m + at});
    for (int64_t r = begin, last; r < end; r = last) {
      const int64_t at = (r - begin) * count_;
      const bool lost = units[at] != units[at];
      for (last = r + 1; last < end; last++) {  // rows of the same kind
        const float unit = units[(last - begin) * count_];
        if ((unit != unit) != lost) break;
      }
      int8_t *to = out_.data + r * out_.stride;
      uint8_t *m = out_.multiplier ? out_.multiplier + r * count_ : nullptr;
      const int64_t n = (last - r) * count_;
      if (lost) {
        std::memset(to, 0, (size_t)((last - r) * out_.stride));
        if (m) std::memset(m, 0, (size_t)n);
        continue;
      }
      // rows are filled up with zeros, whose carriers are zeros
      const int64_t width = std::min(padded_, out_.stride);
      k.carry_groups(rows.of + (r - begin), (int)(last - r), width, plan_,
                     {t.inverse + at, t.low + at, t.high + at, t.m + at}, to, out_.stride);
      for (int64_t i = r; i < last && out_.stride > width; i++)
        std::memset(out_.data + i * out_.stride + width, 0, (size_t)(out_.stride - width));
      for (int64_t g = 0; g < n && m; g++) m[g] = (uint8_t)t.m[at + g];
    }
  }

  const cod_rows &x_;
  const cod::CarryPlan &plan_;
  const cod_carried &out_;
  const cod_transform *const transform_;
  const int64_t group_;
  const int pre_;
  const int64_t count_, padded_, most_;
};

// Rows that one thread takes at once.
int64_t grain_of(int64_t channels, int64_t block) {
  return (kPiece / channels + block) / block * block;
}

void carry(const cod_rows &x, const cod::CarryPlan &plan, const cod_transform *transform,
           const cod_carried &out, int32_t threads) {
  const Groups work(x, plan, transform, out);
  const int64_t grain = grain_of(x.channels, work.block());
  if (out.unit_rows == 1) {
    cod::parallel_for(x.rows, grain, threads,
                      [&](int64_t first, int64_t last) { work.alone(first, last); });
    return;
  }
  Groups::Steps found(x.rows * work.count());
  cod::parallel_for(x.rows, grain, threads,
                    [&](int64_t first, int64_t last) { work.measure(first, last, found); });
  work.share(found);
  cod::parallel_for(x.rows, grain, threads,
                    [&](int64_t first, int64_t last) { work.encode(first, last, found); });
}

// Rows under steps that are given.
class Fixed {
 public:
  Fixed(const cod_rows &x, int bits, const float *step, const int32_t *zero, int64_t count, int pre,
        const cod_carried &out)
      : x_(x), out_(out), count_(count), pre_(pre), own_(out.unit_stride != 0), table_(count) {
    cod::CarryPlan plan = cod::carry_plan(bits, zero != nullptr);
    if (count == 1 || own_) plan.most = 1.0f;
    plan.asymmetric = false;  // zero-points are given
    unit_ = largest(step, count) * (1.0f / plan.most);
    units_.assign((size_t)count, unit_);
    if (own_) std::copy_n(step, count, units_.begin());
    kernels().carry_table(step, nullptr, nullptr, units_.data(), count, plan, table_.view);
    const float most = 2.0f * COD_LARGEST_CARRIER;
    for (int64_t i = 0; i < count; i++) {
      if (zero) {
        table_.view.low[i] = std::max((float)-zero[i], -most);
        table_.view.high[i] = std::min(plan.levels - (float)zero[i], most);
      }
      if (units_[i] != units_[i])
        table_.view.inverse[i] = table_.view.low[i] = table_.view.high[i] = table_.view.m[i] = 0.0f;
    }
  }

  int64_t block() const { return std::min(std::max<int64_t>(kNear / x_.channels, 1), kMostRows); }

  // Units and multipliers; whether there are bytes to find.
  bool begin() const {
    const int64_t units = cod::parts(x_.rows, out_.unit_rows);
    for (int64_t i = 0; i < count_ && out_.multiplier; i++)
      out_.multiplier[i] = (uint8_t)table_.view.m[i];
    for (int64_t i = 0; i < units; i++)
      if (own_)
        std::copy(units_.begin(), units_.end(), out_.unit + i * out_.unit_stride);
      else
        out_.unit[i] = unit_;
    if (x_.rows == 0) return false;
    if (own_ || unit_ == unit_) return true;
    std::memset(out_.data, 0, (size_t)(x_.rows * out_.stride));
    return false;
  }

  void run(int64_t first, int64_t last, bool doubled) const {
    const int64_t bytes = doubled ? 2 * x_.channels : x_.channels;
    if (x_.row_stride != 1 || x_.channel_stride == 1 || pre_ != COD_PRE_NONE ||
        bytes > kImageBytes || out_.stride != kImageBytes)
      return by_rows(first, last, doubled);
    for (int64_t begin = first; begin < last; begin += kNear) {
      const int64_t end = std::min(begin + kNear, last);
      if (!kernels().carry_planes(x_.data + begin, x_.channels, x_.channel_stride, end - begin,
                                  count_ > 1, doubled, table_.view,
                                  out_.data + begin * out_.stride))
        by_rows(begin, end, doubled);
    }
  }

 private:
  static constexpr int64_t kImageBytes = 8;  // of a row of `carry_planes`

  void by_rows(int64_t first, int64_t last, bool doubled) const {
    const int64_t channels = x_.channels, used = doubled ? 2 * channels : channels;
    cod::RowReader reader(x_, pre_, channels, block());
    const float *rows[kMostRows];
    for (int64_t begin = first; begin < last; begin += block()) {
      const int64_t end = std::min(begin + block(), last);
      reader.read(begin, end, rows);
      // rows that share what is loaded of the table
      const int64_t together = doubled ? end - begin : std::max<int64_t>(1024 / channels, 4);
      for (int64_t r = begin; r < end; r += together) {
        const int n = (int)std::min<int64_t>(end - r, together);
        const float *const *x = rows + (r - begin);
        const bool finite = bytes(x, n, r, doubled);
        for (int64_t i = r; i < r + n && doubled && out_.stride > used; i++)
          std::memset(out_.data + i * out_.stride + used, 0, (size_t)(out_.stride - used));
        for (int i = 0; i < n && !finite; i++)
          if (!bytes(x + i, 1, r + i, doubled)) lose(x[i], r + i, used);
      }
    }
  }

  // Bytes of n rows from the r-th on; whether all values are finite.
  bool bytes(const float *const *x, int n, int64_t r, bool doubled) const {
    int8_t *to = out_.data + r * out_.stride;
    if (!doubled)
      return kernels().carry_each(x, n, x_.channels, count_ > 1, table_.view, to, out_.stride);
    return halves(x, n, to);
  }

  // Row r has values that are not finite.
  void lose(const float *x, int64_t r, int64_t used) const {
    int8_t *to = out_.data + r * out_.stride;
    if (!own_) {
      std::memset(to, 0, (size_t)used);
      return spoil(out_.unit + r / out_.unit_rows);
    }
    for (int64_t c = 0; c < x_.channels; c++)
      if (!(std::fabs(x[c]) < INFINITY))
        to[c] = 0, spoil(out_.unit + r / out_.unit_rows * out_.unit_stride + c);
  }

  // Several threads may find such a value; all write the same.
  static void spoil(float *unit) {
    const float bad = NAN;
    int32_t bits;
    std::memcpy(&bits, &bad, sizeof bad);
    __atomic_store_n(reinterpret_cast<int32_t *>(unit), bits, __ATOMIC_RELAXED);
  }

  // q - z in -254..254 as the sum of two bytes; whether all values are finite.
  bool halves(const float *const *x, int n, int8_t *to) const {
    const auto &k = kernels();
    const int64_t channels = x_.channels, all = n * channels;
    bool together = all <= kNear;  // rows that follow each other
    for (int i = 1; i < n; i++) together &= x[i] == x[0] + i * channels;
    if (!together) {
      bool finite = true;
      for (int i = 0; i < n; i++, to += out_.stride)
        finite &= k.carry_halves(x[i], channels, table_.view, to, to + channels);
      return finite;
    }
    int8_t first[kNear], second[kNear];
    const bool finite = k.carry_halves(x[0], all, table_.view, first, second);
    for (int64_t i = 0; i < n; i++, to += out_.stride)
      for (int64_t c = 0; c < channels; c++)
        to[c] = first[i * channels + c], to[channels + c] = second[i * channels + c];
    return finite;
  }

  const cod_rows &x_;
  const cod_carried &out_;
  const int64_t count_;
  const int pre_;
  const bool own_;
  Table table_;
  float unit_;
  std::vector<float> units_;
};

}  // namespace

extern "C" {

int64_t cod_carrier_depth(int64_t channels) {
  const int64_t unit = channels <= 16 ? 8 : 32;
  if (channels > INT64_MAX - unit) return INT64_MAX;  // nothing is as long
  return (channels + unit - 1) / unit * unit;
}

int32_t cod_carry_groups(const cod_rows *x, const cod_quant_spec *spec, int32_t asymmetric,
                         const cod_carried *out, int32_t threads) try {
  if (!spec || spec->bits < 2 || spec->bits > (asymmetric ? 7 : 8) || !cod::fits(*spec) ||
      !usable(x, out, x ? x->channels : 1) || out->unit_stride ||
      !has_room(*out, x->rows, cod::parts(x->channels, spec->group)))
    return COD_BAD_ARGUMENT;
  const bool projected =
      spec->use_percentile || spec->use_tau || spec->use_zero_ratio || spec->guarded;
  if (asymmetric && projected) return COD_BAD_ARGUMENT;
  cod::CarryPlan plan = cod::carry_plan(spec->bits, asymmetric != 0);
  plan.range = cod::plan_of(*spec);
  plan.projected = projected;
  carry(*x, plan, nullptr, *out, threads);
  return COD_OK;
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}

int32_t cod_carry_tokens(const cod_rows *x, const cod_carry_spec *spec, const cod_carried *out,
                         int32_t threads) try {
  if (!cod::fits(spec) || !usable(x, out, x ? x->channels : 1) || out->unit_stride ||
      !cod::holds(spec->transform, x->channels) ||
      !has_room(*out, x->rows, cod::parts(x->channels, spec->group)))
    return COD_BAD_ARGUMENT;
  const cod::CarryPlan plan = cod::carry_plan(*spec);
  carry(*x, plan, &spec->transform, *out, threads);
  return COD_OK;
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}

int32_t cod_carry_fixed(const cod_rows *x, int32_t bits, const float *step, const int32_t *zero,
                        int64_t count, int32_t pre, const cod_carried *out, int32_t threads) try {
  const bool doubled = zero && bits == 8;
  if (!x || !step || bits < 2 || bits > 8 || !cod::is_pre(pre) || x->channels < 1 ||
      x->channels > cod::kMostChannels || !usable(x, out, (doubled ? 2 : 1) * x->channels) ||
      (count != 1 && count != x->channels) || (doubled && count != 1) || !has_room(*out, 1, count))
    return COD_BAD_ARGUMENT;
  const bool own = out->unit_stride != 0;
  if (own && (count != x->channels || out->unit_stride < count)) return COD_BAD_ARGUMENT;
  for (int64_t i = 0; i < count; i++)
    if (step[i] < (float)COD_LEAST_STEP || step[i] == INFINITY ||
        (zero && (zero[i] < 0 || zero[i] >= 1 << bits)))
      return COD_BAD_ARGUMENT;
  const Fixed work(*x, bits, step, zero, count, pre, *out);
  if (!work.begin()) return COD_OK;
  cod::parallel_for(x->rows, grain_of(x->channels, work.block()), threads,
                    [&](int64_t first, int64_t last) { work.run(first, last, doubled); });
  return COD_OK;
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}

}  // extern "C"
