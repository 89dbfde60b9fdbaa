// Rows: norm (layer norm) and softmax along the last axis. Whole maps: group_norm. Any axes:
// reduce. Sums have a fixed order.
//   norm: y, x, weight?, bias?; floats [eps].   softmax: y, x.
//   group_norm: y, x [images, positions, channels], weight?, bias?; ints [groups], floats [eps].
//   reduce: y, x: the axes of y, then those that vanish; ints [op]: sum, mean, largest, 2-norm.
#include <cmath>
#include <vector>

#include "kernels.h"
#include "program_loops.h"

namespace cod {
namespace {

enum { kSum = 0, kMean = 1, kLargest = 2, kLength = 3, kReductions = 4 };
constexpr int64_t kChunk = 64;  // positions whose sums stay in float32

struct Rows : Loops {
  int64_t channels = 0;
};

bool check_rows(Instruction &one) {
  const Operand &y = one.operands[0], &x = one.operands[1];
  if (one.operand_count < 2 || !one.has(1) || !is_float(x) || !is_float(y) || x.ndim < 1 ||
      !same_shape(x, y))
    return false;
  const int last = x.ndim - 1;
  if (x.shape[last] > 1 && (x.stride[last] != 1 || y.stride[last] != 1)) return false;
  auto found = std::make_unique<Rows>();
  const Operand *all[] = {&y, &x};
  if (!found->set(all, 2, true)) return false;
  found->channels = x.shape[last];
  one.prepared = std::move(found);
  return true;
}

bool check_affine(const Instruction &one, int64_t channels) {
  for (int64_t i = 2; i < one.operand_count; i++)
    if (one.has(i) && !is_vector(one.operands[i], channels)) return false;
  return one.operand_count <= 4;
}

bool check_norm(Instruction &one, const Build &) {
  return one.float_count == 1 && check_rows(one) &&
         check_affine(one, static_cast<const Rows &>(*one.prepared).channels);
}
bool check_softmax(Instruction &one, const Build &) {
  return one.operand_count == 2 && check_rows(one);
}

const float *optional(const Instruction &one, const Run &run, int64_t i) {
  return one.has(i) ? run.read<float>(one.operands[i]) : nullptr;
}

// Rows whose factors are found at once: one root and division after the other would wait.
struct Normed {
  static constexpr int kMost = 16;
  const float *from[kMost];
  float *to[kMost];
  float middle[kMost], spread[kMost], scale[kMost];
  int count = 0;
};

int32_t run_norm(const Instruction &one, const Run &run) {
  const auto &rows = static_cast<const Rows &>(*one.prepared);
  const auto &k = kernels().floats;
  float *y = run.write<float>(one.operands[0]);
  const float *x = run.read<float>(one.operands[1]);
  const float *weight = optional(one, run, 2), *bias = optional(one, run, 3);
  const int64_t n = rows.channels;
  parallel_for(rows.outer, 1 + (1 << 13) / n, run.threads, [&](int64_t begin, int64_t end) {
    Normed own;
    const auto finish = [&] {
      for (int i = 0; i < own.count; i++)
        own.scale[i] = (float)(1.0 / std::sqrt((double)own.spread[i] + one.floats[0]));
      for (int i = 0; i < own.count; i++)
        k.normalize(own.from[i], n, own.middle[i], own.scale[i], weight, bias, own.to[i]);
      own.count = 0;
    };
    rows.each(begin, end, [&](const int64_t *at) {
      const float *row = own.from[own.count] = x + at[1];
      const float middle = own.middle[own.count] = k.sum(row, n) / (float)n;
      own.spread[own.count] = k.squares(row, n, middle) / (float)n;
      own.to[own.count] = y + at[0];
      if (++own.count == Normed::kMost) finish();
    });
    finish();
  });
  return COD_OK;
}

int32_t run_softmax(const Instruction &one, const Run &run) {
  const auto &rows = static_cast<const Rows &>(*one.prepared);
  float *y = run.write<float>(one.operands[0]);
  const float *x = run.read<float>(one.operands[1]);
  const int64_t n = rows.channels;
  parallel_for(rows.outer, 1 + (1 << 12) / n, run.threads, [&](int64_t begin, int64_t end) {
    rows.each(begin, end,
              [&](const int64_t *at) { kernels().floats.softmax(x + at[1], n, y + at[0]); });
  });
  return COD_OK;
}

bool check_group_norm(Instruction &one, const Build &) {
  if (one.operand_count < 2 || !one.has(1) || one.int_count != 1 || one.float_count != 1)
    return false;
  const Operand &y = one.operands[0], &x = one.operands[1];
  const int64_t groups = one.ints[0];
  return is_float(x) && is_float(y) && x.ndim == 3 && same_shape(x, y) && groups >= 1 &&
         x.shape[2] % groups == 0 && (x.shape[2] == 1 || (x.stride[2] == 1 && y.stride[2] == 1)) &&
         check_affine(one, x.shape[2]);
}

// Moments of the groups of one image: sums of channels over a chunk of positions in float32, over
// chunks in float64.
void moments(const float *x, int64_t positions, int64_t stride, int64_t channels, int64_t groups,
             int threads, std::vector<float> &middle, std::vector<double> &spread) {
  const int64_t chunks = (positions + kChunk - 1) / kChunk, each = channels / groups;
  std::vector<float> part((size_t)(chunks * channels));
  for (int pass = 0; pass < 2; pass++) {
    std::vector<float> off((size_t)channels, 0.0f);
    for (int64_t c = 0; c < channels && pass; c++) off[c] = middle[c / each];
    parallel_for(chunks, 1 + (1 << 14) / (kChunk * channels), threads,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; i++) {
                     float *own = &part[i * channels];
                     std::fill_n(own, channels, 0.0f);
                     for (int64_t p = i * kChunk; p < std::min((i + 1) * kChunk, positions); p++) {
                       const float *row = x + p * stride;
                       if (pass)
                         for (int64_t c = 0; c < channels; c++)
                           own[c] += (row[c] - off[c]) * (row[c] - off[c]);
                       else
                         for (int64_t c = 0; c < channels; c++) own[c] += row[c];
                     }
                   }
                 });
    for (int64_t g = 0; g < groups; g++) {
      double total = 0;
      for (int64_t i = 0; i < chunks; i++)
        for (int64_t c = g * each; c < (g + 1) * each; c++) total += part[i * channels + c];
      total /= (double)(positions * each);
      if (pass)
        spread[g] = total;
      else
        middle[g] = (float)total;
    }
  }
}

int32_t run_group_norm(const Instruction &one, const Run &run) {
  const Operand &to = one.operands[0], &from = one.operands[1];
  const int64_t positions = from.shape[1], channels = from.shape[2], groups = one.ints[0];
  const int64_t each = channels / groups;
  const float *weight = optional(one, run, 2), *bias = optional(one, run, 3);
  std::vector<float> middle((size_t)groups), factor((size_t)channels), plus((size_t)channels);
  std::vector<double> spread((size_t)groups);
  for (int64_t b = 0; b < from.shape[0]; b++) {
    const float *x = run.read<float>(from) + b * from.stride[0];
    float *y = run.write<float>(to) + b * to.stride[0];
    moments(x, positions, from.stride[1], channels, groups, run.threads, middle, spread);
    for (int64_t c = 0; c < channels; c++) {
      const double scale = 1.0 / std::sqrt(spread[c / each] + one.floats[0]);
      factor[c] = (float)(scale * (weight ? weight[c] : 1.0f));
      plus[c] = (float)((bias ? bias[c] : 0.0f) - middle[c / each] * (double)factor[c]);
    }
    parallel_for(positions, 1 + (1 << 14) / channels, run.threads, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; p++)
        kernels().floats.normalize(x + p * from.stride[1], channels, 0.0f, 1.0f, factor.data(),
                                   plus.data(), y + p * to.stride[1]);
    });
  }
  return COD_OK;
}

struct Reduction : Prepared {
  Loops kept, gone;     // kept: y and x; gone: x alone
  int64_t count = 1;    // values of each sum
  bool across = false;  // outputs lie side by side in x: sums of whole lines
};

bool check_reduce(Instruction &one, const Build &) {
  if (one.operand_count != 2 || !one.has(1) || one.int_count != 1 || one.ints[0] < 0 ||
      one.ints[0] >= kReductions)
    return false;
  const Operand &y = one.operands[0], &x = one.operands[1];
  if (!is_float(x) || !is_float(y) || x.ndim < y.ndim) return false;
  Operand kept = x, gone = x;
  kept.ndim = y.ndim;
  gone.ndim = x.ndim - y.ndim;
  for (int d = 0; d < gone.ndim; d++)
    gone.shape[d] = x.shape[y.ndim + d], gone.stride[d] = x.stride[y.ndim + d];
  auto found = std::make_unique<Reduction>();
  const Operand *both[] = {&y, &kept}, *alone[] = {&gone};
  if (!found->kept.set(both, 2) || !found->gone.set(alone, 1)) return false;
  found->count = elements(gone);
  found->across = found->kept.step(0) == 1 && found->kept.step(1) == 1 && found->kept.inner > 1;
  one.prepared = std::move(found);
  return true;
}

double begin_of(int op) { return op == kLargest ? -INFINITY : 0.0; }
double joined(int op, double total, double value) {
  if (op == kLargest) return value > total || value != value ? value : total;
  return total + (op == kLength ? value * value : value);
}
float ended(int op, double total, int64_t count) {
  return (float)(op == kMean ? total / (double)count : op == kLength ? std::sqrt(total) : total);
}

// Sums of the outputs [first, last) of a line.
void reduce_across(const Reduction &r, int op, const float *x, float *y, int64_t first,
                   int64_t last) {
  std::vector<double> total((size_t)(last - first), begin_of(op));
  const int64_t n = last - first, step = r.gone.step(0);
  r.gone.each(0, r.gone.outer, [&](const int64_t *at) {
    for (int64_t i = 0; i < r.gone.inner; i++) {
      const float *row = x + at[0] + i * step + first;
      if (op == kLargest)
        for (int64_t c = 0; c < n; c++) total[c] = joined(kLargest, total[c], row[c]);
      else if (op == kLength)
        for (int64_t c = 0; c < n; c++) total[c] += (double)row[c] * row[c];
      else
        for (int64_t c = 0; c < n; c++) total[c] += row[c];
    }
  });
  for (int64_t c = 0; c < n; c++) y[first + c] = ended(op, total[c], r.count);
}

float reduce_one(const Reduction &r, int op, const float *x) {
  const auto &k = kernels().floats;
  const int64_t n = r.gone.inner, step = r.gone.step(0);
  double total = begin_of(op);
  r.gone.each(0, r.gone.outer, [&](const int64_t *at) {
    const float *line = x + at[0];
    if (step == 1 && op == kLargest)
      total = joined(op, total, k.largest(line, n));
    else if (step == 1)
      total += op == kLength ? k.squares(line, n, 0.0f) : k.sum(line, n);
    else
      for (int64_t i = 0; i < n; i++) total = joined(op, total, line[i * step]);
  });
  return ended(op, total, r.count);
}

int32_t run_reduce(const Instruction &one, const Run &run) {
  const auto &r = static_cast<const Reduction &>(*one.prepared);
  const int op = (int)one.ints[0];
  float *y = run.write<float>(one.operands[0]);
  const float *x = run.read<float>(one.operands[1]);
  const int64_t piece = r.across ? std::min<int64_t>(r.kept.inner, 64) : r.kept.inner;
  const int64_t cuts = (r.kept.inner + piece - 1) / piece;
  parallel_for(r.kept.outer * cuts, 1 + (1 << 13) / (piece * r.count), run.threads,
               [&](int64_t begin, int64_t end) {
                 for (int64_t item = begin; item < end; item++)
                   r.kept.each(item / cuts, item / cuts + 1, [&](const int64_t *at) {
                     const int64_t first = item % cuts * piece;
                     const int64_t last = std::min(first + piece, r.kept.inner);
                     if (r.across) return reduce_across(r, op, x + at[1], y + at[0], first, last);
                     for (int64_t i = first; i < last; i++)
                       y[at[0] + i * r.kept.step(0)] =
                           reduce_one(r, op, x + at[1] + i * r.kept.step(1));
                   });
               });
  return COD_OK;
}

}  // namespace

extern const Kind kKind_norm, kKind_softmax, kKind_group_norm, kKind_reduce;
const Kind kKind_norm{"norm", 1, check_norm, run_norm};
const Kind kKind_softmax{"softmax", 1, check_softmax, run_softmax};
const Kind kKind_group_norm{"group_norm", 1, check_group_norm, run_group_norm};
const Kind kKind_reduce{"reduce", 1, check_reduce, run_reduce};

}  // namespace cod
