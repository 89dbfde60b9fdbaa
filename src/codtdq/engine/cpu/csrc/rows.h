// What encoders share: what a spec means, and rows of an input as contiguous floats.
#pragma once
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels.h"
#include "spans.h"

namespace cod {

constexpr int kRowBlock = 16;  // rows gathered at once when channels are strided

inline bool changes(const cod_transform &t) { return t.shift || t.scale || t.order || t.hadamard; }

// The rows of a block as contiguous floats, the pre-activation or a transform applied, zeros up to
// `padded`.
class RowReader {
 public:
  RowReader(const cod_rows &x, int pre, int64_t padded, int64_t most = kRowBlock,
            const cod_transform *transform = nullptr)
      : x_(x),
        pre_(pre),
        padded_(padded),
        transform_(transform && changes(*transform) ? transform : nullptr),
        gather_(x.channel_stride != 1 || pre != COD_PRE_NONE ||
                (padded != x.channels && !transform_)) {
    if (gather_) make(most, buffer_);
    if (transform_) make(most, changed_);
  }

  // Pointers to rows [begin, end), as many as `most` says.
  void read(int64_t begin, int64_t end, const float **rows) {
    for (int64_t r = begin; r < end; r++) rows[r - begin] = x_.data + r * x_.row_stride;
    if (gather_) gather(begin, end, rows);
    if (!transform_) return;
    kernels().transform(rows, (int)(end - begin), x_.channels, *transform_, changed_.get(),
                        padded_);
    for (int64_t i = 0; i < end - begin; i++) rows[i] = &changed_[i * padded_];
  }

 private:
  static constexpr int64_t kShort = 128;  // channels: copied in less time than calls take

  // Memory for rows: only what fills them up is set, and stays.
  void make(int64_t most, std::unique_ptr<float[]> &rows) {
    rows.reset(new float[(size_t)(most * padded_)]);
    const size_t rest = (size_t)(padded_ - x_.channels) * sizeof(float);
    for (int64_t i = 0; i < most && rest; i++)
      std::memset(&rows[i * padded_ + x_.channels], 0, rest);
  }

  void gather(int64_t begin, int64_t end, const float **rows) {
    const int64_t n = end - begin, channels = x_.channels;
    if (x_.channel_stride == 1 && pre_ == COD_PRE_GELU) {
      for (int64_t i = 0; i < n; i++) {
        kernels().gelu(rows[i], channels, &buffer_[i * padded_]);
        rows[i] = &buffer_[i * padded_];
      }
      return;
    }
    if (x_.channel_stride == 1 && channels <= kShort) {
      kernels().transform(rows, (int)n, channels, cod_transform{}, buffer_.get(), padded_);
    } else if (x_.channel_stride == 1) {
      for (int64_t i = 0; i < n; i++)
        std::memcpy(&buffer_[i * padded_], rows[i], (size_t)channels * sizeof(float));
    } else if (x_.row_stride == 1) {
      kernels().turn(x_.data + begin, channels, x_.channel_stride, n, buffer_.get(), padded_);
    } else {
      for (int64_t c = 0; c < channels; c++) {
        const float *column = x_.data + begin * x_.row_stride + c * x_.channel_stride;
        for (int64_t i = 0; i < n; i++) buffer_[i * padded_ + c] = column[i * x_.row_stride];
      }
    }
    for (int64_t i = 0; i < n; i++) {
      float *row = &buffer_[i * padded_];
      if (pre_ == COD_PRE_GELU) kernels().gelu(row, channels, row);
      if (pre_ == COD_PRE_RELU)
        for (int64_t c = 0; c < channels; c++) row[c] = row[c] < 0.0f ? 0.0f : row[c];
      rows[i] = row;
    }
  }

  const cod_rows &x_;
  int pre_;
  int64_t padded_;
  const cod_transform *transform_;
  bool gather_;
  std::unique_ptr<float[]> buffer_, changed_;
};

constexpr int64_t kMostChannels = (int64_t)1 << 40;  // no count of a padded row overflows

inline bool is_pre(int32_t pre) {
  return pre == COD_PRE_NONE || pre == COD_PRE_GELU || pre == COD_PRE_RELU;
}

// Ranks of a group follow from shares: those lie inside of it.
inline bool fits(const cod_quant_spec &spec) {
  const auto share = [](int32_t used, double part) { return !used || (part >= 0 && part <= 1); };
  return spec.bits >= 2 && spec.bits <= 8 && spec.group >= 1 && spec.group <= COD_MAX_GROUP &&
         is_pre(spec.pre) && share(spec.use_percentile, spec.percentile) &&
         share(spec.use_zero_ratio, spec.zero_ratio) && (!spec.use_tau || std::isfinite(spec.tau));
}

inline int rank_of(double share, int count) {
  const int rank = (int)std::ceil(share * count - 1e-9);
  return rank < 1 ? 1 : rank;
}

inline Plan plan_of(const cod_quant_spec &spec) {
  Plan plan{};
  plan.spec = spec;
  const double qmax = (1 << (spec.bits - 1)) - 1;
  const bool both = spec.use_tau && spec.use_zero_ratio;
  plan.bound_tau = spec.use_tau && (!spec.literal || both);
  plan.bound_zero = spec.use_zero_ratio && (!spec.literal || both);
  plan.qmax = (float)qmax;
  plan.floor = (float)(qmax * 1e-8);
  plan.tau_factor = (float)(qmax * spec.tau);
  plan.zero_factor = (float)(2.0 * qmax * (spec.literal ? 1.0 : COD_TIE_MARGIN));
  for (int n = 0; n <= spec.group; n++) {
    plan.percentile_rank[n] = rank_of(spec.percentile, n);
    plan.zero_rank[n] = rank_of(spec.zero_ratio, n);
  }
  return plan;
}

// How codes of so many bits become carriers.
inline CarryPlan carry_plan(int bits, bool asymmetric) {
  CarryPlan plan{};
  const int half = 1 << (bits - 1);
  const int reach = asymmetric ? 2 * half - 1 : half;
  plan.asymmetric = asymmetric;
  plan.levels = (float)(2 * half - 1);
  plan.low = (float)(half > COD_LARGEST_CARRIER ? -COD_LARGEST_CARRIER : -half);
  plan.high = (float)(half - 1);
  plan.most = (float)(COD_LARGEST_CARRIER / reach > 1 ? COD_LARGEST_CARRIER / reach : 1);
  plan.trials = 1;
  return plan;
}

inline bool fits(const cod_carry_spec *spec) {
  return spec && spec->bits >= 2 && spec->bits <= (spec->asymmetric ? 7 : 8) && spec->group >= 1 &&
         spec->group <= COD_MAX_GROUP && spec->trials >= 1 && spec->trials <= COD_MAX_TRIALS;
}

inline CarryPlan carry_plan(const cod_carry_spec &spec) {
  CarryPlan plan = carry_plan(spec.bits, spec.asymmetric != 0);
  cod_quant_spec range{};
  range.bits = spec.bits, range.group = spec.group;
  plan.range = plan_of(range);
  plan.trials = spec.trials, plan.zero_weight = spec.zero_weight;
  return plan;
}

}  // namespace cod
