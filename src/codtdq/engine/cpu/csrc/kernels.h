// What an instruction set provides: table.h fills this table for each of them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "codtdq_native.h"
#include "float_kernels.h"

namespace cod {

// What a spec means, worked out once per call.
struct Plan {
  cod_quant_spec spec;
  bool bound_tau, bound_zero;
  float qmax, floor, tau_factor, zero_factor;
  int percentile_rank[COD_MAX_GROUP + 1], zero_rank[COD_MAX_GROUP + 1];  // by count of elements
};

constexpr int kMaxLanes = 64;

// A block of groups to quantize, `spec.group` contiguous floats each. Short groups are padded with
// zeros; `valid` counts their real elements. Carriers: past the last group there are pointers to
// others.
struct GroupBlock {
  const float *values[kMaxLanes];
  int32_t valid[kMaxLanes];
  int8_t *codes[kMaxLanes];
  int lanes;
};

struct alignas(64) GroupResult {
  float radius[kMaxLanes], step[kMaxLanes];
  int32_t active[kMaxLanes], infeasible[kMaxLanes], sums[kMaxLanes];
};

// x / step lies between x * inverse * (1 - kMargin) and x * inverse * (1 + kMargin).
constexpr float kMargin = 0x1p-21f;

// Bounds of 1 / step of up to 16 groups, and the bounds of their codes plus 1.5 * 2^23: the low
// byte of such a float is the code.
struct alignas(64) CodeRange {
  float low[16], high[16], bottom[16], top[16];
};

// A line of pixels: y[p, c] = (sum over taps of x[t][p, c] weight[t][c]) scale[c] + bias[c]. Of
// carriers, x and weight are what `depthwise_spread` and `depthwise_weights` made, of
// `depthwise_taps` taps at once, with room for whole vectors.
struct DepthwiseLine {
  const float *const *x, *const *weight;  // [taps]: of the first pixel; of the tap
  const float *bias;                      // or NULL
  const float *scale;                     // of carriers only
  int taps;
  int64_t pixels, x_step, y_step;  // steps: floats from pixel to pixel
  float *y;
};

// One tile of a product of carriers, all taps: y[r, j] = act((sum of x w) * (unit[r] * factor[j]) +
// bias[j]) * gain[j] + added[r, j]. x[t * rows + r]: carriers of row r under tap t, `depth` of
// them; sums: what `carrier_sums` says of them, or, of sets that lift weights, totals of each row
// over its taps. w: what `carrier_expand` made of a panel, with its multipliers.
struct CarrierTile {
  const int8_t *const *x;
  const int32_t *const *sums;
  const int32_t *totals;
  const int32_t *places;  // of each tap: which of those in w and multipliers is its own
  const int8_t *packed;   // of sets that pack rows: what `carrier_pack` made of x
  const uint8_t *w;
  const int32_t *multipliers;  // [taps * runs][columns], or NULL
  int64_t taps, depth;
  int run;
  bool bytes;  // weights have 8 bits
  float *y;
  int64_t stride;
  const float *unit, *factor, *bias;  // [tile rows], [tile columns], [tile columns] or NULL
  const float *gain, *added;          // [columns], [rows, columns]; or NULL
  int64_t added_stride;
  int activation;
  int rows, columns;  // of the tile: those that exist
};

// How groups become carriers (carry.h); `range` has their bounds.
struct CarryPlan {
  Plan range;
  bool projected;   // ranges are more than the largest magnitudes
  bool asymmetric;  // codes have a zero-point
  float levels;     // asymmetric: largest code
  float low, high;  // symmetric: limits of codes
  float most;       // largest multiplier
  int trials;       // multipliers to try
  float zero_weight;
};

// Steps of groups, NaN where a value is not finite; `bounded`: they may not grow; `least`: of
// asymmetric groups, the lowest value, at most 0.
struct alignas(64) GroupSteps {
  float step[kMaxLanes], least[kMaxLanes];
  int32_t bounded[kMaxLanes];
};

// What turns values into carriers, one entry for each group or each channel:
// m * clamp(rint(x * inverse), low, high).
struct CarryTable {
  float *inverse, *low, *high, *m;
};

// Attention of one head: y[i] = softmax(q[i] k^T scale + bias) v. Pointers to rows; bias: up to two
// tables of [queries, keys], or NULL.
struct AttentionUnit {
  const float *const *q, *const *k, *const *v;
  float *const *y;
  int64_t queries, keys, depth, width;
  float scale;
  const float *bias[2];
  int64_t bias_stride[2];
};

struct Kernels {
  const char *name;
  bool (*runs_here)();       // asked once, before anything else of the file is called
  const char *(*refusal)();  // why it does not run here; NULL: nothing more to say
  int lanes;                 // groups that one call of `quantize` takes
  void (*quantize)(const GroupBlock &block, const Plan &plan, GroupResult &out);
  void (*gelu)(const float *x, int64_t n, float *y);
  void (*activate)(float *y, int64_t n, int activation);  // in place
  // numbers of `count` pixels, `step` apart, n channels each: carriers of pixels[p + j far] for
  // each of `depthwise_taps` taps j, or weights of so many rows
  int depthwise_taps;
  void (*depthwise_spread)(const int8_t *const *pixels, int64_t count, int64_t far, int64_t n,
                           float *x, int64_t step);
  void (*depthwise_weights)(const int8_t *const *rows, int64_t n, float *w);
  // n channels: of carriers, and of floats
  void (*depthwise_carriers)(const DepthwiseLine &line, int64_t n);
  void (*depthwise)(const DepthwiseLine &line, int64_t n);
  void (*multiply)(float *y, const float *x, int64_t n);  // y *= x
  // y = sum over i of share[i] x[i]
  void (*blend)(const float *const *x, const float *share, int count, int64_t n, float *y);
  // best[i] (each) or best[0] = max with the magnitudes |x[i]| as integers
  void (*magnitudes)(const float *x, int64_t n, bool each, int32_t *best);

  // `count` rows of n values; those of y are `stride` apart
  void (*transform)(const float *const *x, int count, int64_t n, const cod_transform &transform,
                    float *y, int64_t stride);

  // Products of carriers. A panel of weights: [taps][depth / unit][columns][unit] codes.
  int carrier_rows, carrier_columns, carrier_unit;
  int carrier_pair;     // bytes whose nibbles lie in the low halves, before those in the high ones
  int carrier_lift;     // what expanded weights have added to them
  bool carrier_mirror;  // nibbles under a negative multiplier are stored inverted
  // int32 that a row of `depth` carriers has as its sums, and those of rows, `stride` apart. Sets
  // that lift weights have one: what the lift adds to a product with the row, negative.
  int64_t (*carrier_sum_count)(int64_t depth, int run);
  void (*carrier_sums)(const int8_t *x, int64_t stride, int64_t rows, int64_t depth, int run,
                       int32_t *sums);
  // nibbles of `runs` runs and their multipliers (or NULL) to what a tile reads
  void (*carrier_expand)(const uint8_t *packed, const int8_t *p, int64_t runs, int run,
                         uint8_t *bytes, int32_t *multipliers);
  void (*carrier_tile)(const CarrierTile &tile);
  // sets that need the rows of a tile side by side, else NULL: bytes for one, and how
  int64_t (*carrier_packed)(int64_t taps, int64_t depth);
  void (*carrier_pack)(const int8_t *const *x, int64_t taps, int64_t depth, int8_t *to);
  void (*carrier_begin)();  // before and after the tiles of one thread, or NULL
  void (*carrier_end)();

  // Carriers of values.
  void (*carry_steps)(const GroupBlock &block, const CarryPlan &plan, GroupSteps &out);
  // multipliers and codes' limits of n groups or channels under their units
  void (*carry_table)(const float *step, const float *least, const int32_t *bounded,
                      const float *units, int64_t n, const CarryPlan &plan, const CarryTable &out);
  // bytes of n rows, `stride` apart, under a table with the entries of all their groups
  void (*carry_groups)(const float *const *rows, int n, int64_t channels, const CarryPlan &plan,
                       const CarryTable &table, int8_t *to, int64_t stride);
  // better multipliers of `block.lanes` groups, from the entries of a table on: those with the
  // least errors of `plan.trials`
  void (*carry_try)(const GroupBlock &block, const float *units, const CarryPlan &plan,
                    const CarryTable &table);
  // of groups of n pixels, rows of channels: their steps and least values; better multipliers
  void (*carry_pixel_steps)(const float *const *rows, int n, int64_t channels,
                            const CarryPlan &plan, float *step, float *least);
  void (*carry_try_pixels)(const float *const *rows, int n, int64_t channels, const float *units,
                           const CarryPlan &plan, const CarryTable &table);
  // bytes of n rows with an entry for each channel, or one for all, then zeros up to the next row;
  // whether all values are finite
  bool (*carry_each)(const float *const *rows, int n, int64_t channels, bool each,
                     const CarryTable &table, int8_t *to, int64_t stride);
  // the same of n values with one entry for all, each as the sum of two bytes
  bool (*carry_halves)(const float *x, int64_t n, const CarryTable &table, int8_t *first,
                       int8_t *second);
  // the same of n pixels whose up to 8 bytes are a row; channel c begins at x[c * channel_stride]
  bool (*carry_planes)(const float *x, int64_t channels, int64_t channel_stride, int64_t n,
                       bool each, bool halved, const CarryTable &table, int8_t *to);
  // to[p * stride + c] = x[c * channel_stride + p] for p < pixels
  void (*turn)(const float *x, int64_t channels, int64_t channel_stride, int64_t pixels, float *to,
               int64_t stride);

  // By its kind of products: floats of scratch memory that a unit needs, and the unit.
  struct {
    int64_t (*memory)(const AttentionUnit &unit);
    void (*run)(const AttentionUnit &unit, float *memory);
  } attention[2];
  FloatKernels floats;  // of programs
};

const Kernels &kernels();  // of the set in use

constexpr int kMostThreads = 256;  // more are taken as so many

// Run job(begin, end) over [0, count) on up to `threads` threads. Jobs must not depend on the cut.
// One that throws, on whatever thread, makes this throw std::bad_alloc when all have ended.
void parallel(int64_t count, int64_t grain, int threads, void (*job)(void *, int64_t, int64_t),
              void *context);

template <typename F>
void parallel_for(int64_t count, int64_t grain, int threads, const F &body) {
  auto call = [](void *context, int64_t begin, int64_t end) {
    (*static_cast<const F *>(context))(begin, end);
  };
  parallel(count, grain, threads, call, const_cast<F *>(&body));
}

}  // namespace cod
