// Encoders of carriers: rows of floats in, signed bytes and units out, in one pass over memory. A
// block of rows stays in the nearest cache between the look at its ranges and the bytes.
#include <algorithm>
#include <cmath>
#include <vector>

#include "rows.h"

namespace {

using cod::kernels;

constexpr int64_t kNear = 4096;      // floats of a block of rows
constexpr int64_t kMostRows = 32;    // of a block
constexpr int64_t kVector = 16;      // floats; no instruction set has more
constexpr int64_t kPiece = 1 << 15;  // values; less is not worth another thread

bool usable(const cod_rows *x, const cod_carried *out) {
  return x && out && x->rows >= 0 && x->channels >= 1 && (x->data || x->rows == 0) &&
         ((out->data && out->unit) || x->rows == 0) && out->unit_rows >= 1 &&
         out->stride >= cod_carrier_depth(x->channels);
}

// Entries of a table for n groups or channels, with room for a whole vector more.
struct Table {
  std::vector<float> memory;
  cod::CarryTable view;
  explicit Table(int64_t n) : memory((size_t)(4 * (n + kVector)), 0.0f) {
    const int64_t each = n + kVector;
    float *at = memory.data();
    view = {at, at + each, at + 2 * each, at + 3 * each};
  }
};

// The largest step; NaN if one is NaN.
float largest(const float *step, int64_t n) {
  float top = 0.0f;
  bool bad = false;
  for (int64_t i = 0; i < n; i++) {
    bad |= step[i] != step[i];
    top = step[i] > top ? step[i] : top;
  }
  return bad ? NAN : top;
}

cod::CarryPlan plan_for(int bits, bool asymmetric) {
  cod::CarryPlan plan{};
  const int half = 1 << (bits - 1);
  const int reach = asymmetric ? 2 * half - 1 : half;
  plan.asymmetric = asymmetric;
  plan.levels = (float)(2 * half - 1);
  plan.low = (float)std::max(-half, -COD_LARGEST_CARRIER);
  plan.high = (float)(half - 1);
  plan.most = (float)std::max(COD_LARGEST_CARRIER / reach, 1);
  return plan;
}

class Groups {
 public:
  Groups(const cod_rows &x, const cod_quant_spec &spec, const cod::CarryPlan &plan,
         const cod_carried &out)
      : x_(x),
        plan_(plan),
        out_(out),
        group_(spec.group),
        pre_(spec.pre),
        count_((x.channels + group_ - 1) / group_),
        padded_(count_ * group_),
        most_(std::min(std::max<int64_t>(kNear / padded_, 1), kMostRows)) {}

  int64_t block() const { return most_; }
  int64_t count() const { return count_; }

  // Steps of groups, row by row, and what follows from them.
  struct Steps {
    std::vector<float> step, least, units;
    std::vector<int32_t> bounded;
    explicit Steps(int64_t n)
        : step((size_t)(n + cod::kMaxLanes)),
          least(step.size()),
          units(step.size()),
          bounded(step.size()) {}
  };

  // Rows with units of their own.
  void alone(int64_t first, int64_t last) const {
    cod::RowReader reader(x_, pre_, padded_, most_);
    Steps found(most_ * count_);
    Table table(most_ * count_);
    const float *rows[kMostRows];
    for (int64_t begin = first; begin < last; begin += most_) {
      const int64_t end = std::min(begin + most_, last);
      reader.read(begin, end, rows);
      look(rows, end - begin, found, 0);
      for (int64_t r = begin; r < end; r++) {
        const int64_t at = (r - begin) * count_;
        out_.unit[r] = largest(&found.step[at], count_) * (1.0f / plan_.most);
        std::fill_n(&found.units[at], count_, out_.unit[r]);
      }
      write(rows, begin, end, found, 0, table);
    }
  }

  // Steps of rows [first, last), whose place in `found` is that of all rows.
  void measure(int64_t first, int64_t last, Steps &found) const {
    cod::RowReader reader(x_, pre_, padded_, most_);
    const float *rows[kMostRows];
    for (int64_t begin = first; begin < last; begin += most_) {
      const int64_t end = std::min(begin + most_, last);
      reader.read(begin, end, rows);
      look(rows, end - begin, found, begin * count_);
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
    cod::RowReader reader(x_, pre_, padded_, most_);
    Table table(most_ * count_);
    const float *rows[kMostRows];
    for (int64_t begin = first; begin < last; begin += most_) {
      const int64_t end = std::min(begin + most_, last);
      reader.read(begin, end, rows);
      write(rows, begin, end, found, begin * count_, table);
    }
  }

 private:
  // Steps of n rows, from `to` on.
  void look(const float *const *rows, int64_t n, Steps &found, int64_t to) const {
    const auto &k = kernels();
    const int32_t tail = (int32_t)(x_.channels - (count_ - 1) * group_);
    cod::GroupBlock block;
    cod::GroupSteps steps;
    int64_t row = 0, g = 0;  // of the next group
    const float *values = rows[0];
    for (int64_t at = 0; at < n * count_; at += cod::kMaxLanes) {
      block.lanes = (int)std::min<int64_t>(n * count_ - at, cod::kMaxLanes);
      for (int l = 0; l < block.lanes; l++) {
        block.values[l] = values;
        block.valid[l] = (int32_t)group_;
        values += group_;
        if (++g < count_) continue;
        block.valid[l] = tail;
        g = 0;
        if (++row < n) values = rows[row];
      }
      k.carry_steps(block, plan_, steps);
      std::copy_n(steps.step, block.lanes, &found.step[to + at]);
      if (plan_.asymmetric) std::copy_n(steps.least, block.lanes, &found.least[to + at]);
      if (plan_.projected) std::copy_n(steps.bounded, block.lanes, &found.bounded[to + at]);
    }
  }

  // Bytes of rows [begin, end), whose steps begin at `from`.
  void write(const float *const *rows, int64_t begin, int64_t end, const Steps &found, int64_t from,
             Table &table) const {
    const auto &k = kernels();
    k.carry_table(&found.step[from], &found.least[from],
                  plan_.projected ? &found.bounded[from] : nullptr, &found.units[from],
                  (end - begin) * count_, plan_, table.view);
    cod::CarryTable own = table.view;
    for (int64_t r = begin; r < end; r++) {
      int8_t *to = out_.data + r * out_.stride;
      uint8_t *m = out_.multiplier ? out_.multiplier + r * count_ : nullptr;
      const float unit = found.units[from + (r - begin) * count_];
      if (unit != unit) {
        std::memset(to, 0, (size_t)out_.stride);
        if (m) std::memset(m, 0, (size_t)count_);
      } else {
        k.carry_groups(rows[r - begin], x_.channels, (int)group_, own, to);
        if (out_.stride > x_.channels)
          std::memset(to + x_.channels, 0, (size_t)(out_.stride - x_.channels));
        for (int64_t g = 0; g < count_ && m; g++) m[g] = (uint8_t)own.m[g];
      }
      own = {own.inverse + count_, own.low + count_, own.high + count_, own.m + count_};
    }
  }

  const cod_rows &x_;
  const cod::CarryPlan &plan_;
  const cod_carried &out_;
  const int64_t group_;
  const int pre_;
  const int64_t count_, padded_, most_;
};

// Rows that one thread takes at once.
int64_t grain_of(int64_t channels, int64_t block) {
  return (kPiece / channels + block) / block * block;
}

}  // namespace

extern "C" {

int64_t cod_carrier_depth(int64_t channels) {
  const int64_t unit = channels <= 16 ? 8 : 32;
  return (channels + unit - 1) / unit * unit;
}

int32_t cod_carry_groups(const cod_rows *x, const cod_quant_spec *spec, int32_t asymmetric,
                         const cod_carried *out, int32_t threads) {
  if (!usable(x, out) || !spec || spec->bits < 2 || spec->bits > (asymmetric ? 7 : 8) ||
      spec->group < 1 || spec->group > COD_MAX_GROUP)
    return COD_BAD_ARGUMENT;
  const bool projected =
      spec->use_percentile || spec->use_tau || spec->use_zero_ratio || spec->guarded;
  if (asymmetric && projected) return COD_BAD_ARGUMENT;
  cod::CarryPlan plan = plan_for(spec->bits, asymmetric != 0);
  plan.range = cod::plan_of(*spec);
  plan.projected = projected;
  const Groups work(*x, *spec, plan, *out);
  const int64_t grain = grain_of(x->channels, work.block());
  if (out->unit_rows == 1) {
    cod::parallel_for(x->rows, grain, threads,
                      [&](int64_t first, int64_t last) { work.alone(first, last); });
    return COD_OK;
  }
  Groups::Steps found(x->rows * work.count());
  cod::parallel_for(x->rows, grain, threads,
                    [&](int64_t first, int64_t last) { work.measure(first, last, found); });
  work.share(found);
  cod::parallel_for(x->rows, grain, threads,
                    [&](int64_t first, int64_t last) { work.encode(first, last, found); });
  return COD_OK;
}

int32_t cod_carry_fixed(const cod_rows *x, int32_t bits, const float *step, const int32_t *zero,
                        int64_t count, int32_t pre, const cod_carried *out, int32_t threads) {
  if (!usable(x, out) || !step || bits < 2 || bits > (zero ? 7 : 8) ||
      (count != 1 && count != x->channels))
    return COD_BAD_ARGUMENT;
  for (int64_t i = 0; i < count; i++)
    if (step[i] < (float)COD_LEAST_STEP || step[i] == INFINITY ||
        (zero && (zero[i] < 0 || zero[i] >= 1 << bits)))
      return COD_BAD_ARGUMENT;
  cod::CarryPlan plan = plan_for(bits, zero != nullptr);
  if (count == 1) plan.most = 1.0f;
  const float unit = largest(step, count) * (1.0f / plan.most);
  const int64_t units = (x->rows + out->unit_rows - 1) / out->unit_rows;
  std::fill_n(out->unit, units, unit);
  if (unit != unit) {
    if (x->rows) std::memset(out->data, 0, (size_t)(x->rows * out->stride));
    if (out->multiplier) std::memset(out->multiplier, 0, (size_t)count);
    return COD_OK;
  }
  Table table(count);
  plan.asymmetric = false;  // zero-points are given
  const std::vector<float> same((size_t)count, unit);
  kernels().carry_table(step, nullptr, nullptr, same.data(), count, plan, table.view);
  for (int64_t i = 0; i < count; i++) {
    if (zero)
      table.view.low[i] = (float)-zero[i], table.view.high[i] = plan.levels - (float)zero[i];
    if (out->multiplier) out->multiplier[i] = (uint8_t)table.view.m[i];
  }
  const int64_t channels = x->channels;
  const int64_t most = std::min(std::max<int64_t>(kNear / channels, 1), kMostRows);
  cod::parallel_for(x->rows, grain_of(channels, most), threads, [&](int64_t first, int64_t last) {
    cod::RowReader reader(*x, pre, channels, most);
    const float *rows[kMostRows];
    for (int64_t begin = first; begin < last; begin += most) {
      const int64_t end = std::min(begin + most, last);
      reader.read(begin, end, rows);
      for (int64_t r = begin; r < end; r++) {
        int8_t *to = out->data + r * out->stride;
        const bool finite =
            kernels().carry_each(rows[r - begin], channels, count > 1, table.view, to);
        if (out->stride > channels) std::memset(to + channels, 0, (size_t)(out->stride - channels));
        if (finite) continue;
        std::memset(to, 0, (size_t)channels);
        const float bad = NAN;
        int32_t bits_of_bad;
        std::memcpy(&bits_of_bad, &bad, sizeof bad);
        // several threads may find one; all write the same
        __atomic_store_n(reinterpret_cast<int32_t *>(out->unit + r / out->unit_rows), bits_of_bad,
                         __ATOMIC_RELAXED);
      }
    }
  });
  return COD_OK;
}

}  // extern "C"
