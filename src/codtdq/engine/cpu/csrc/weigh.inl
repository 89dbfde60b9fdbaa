// Ranges that are weighed, groups across lanes: written once, compiled for every set.
// The including file defines W, VF, VI, fmin_lanes, fmax_lanes, vfma, vfnma, vround, vany,
// load_transposed, swap_lanes<distance>, reciprocal (to 2^-22), quotient(x, y, 1 / y) as exact as a
// division, store_codes(integers, codes) and encode_between; kMagic is that of guard.inl.

namespace {

constexpr int kE4M3Bias = (127 - 7) * 8;  // between the codes of E4M3 and the top bits of a float
constexpr int kLargestCode = 126;         // 448

// The smallest E4M3 number that is not below a scale (to one part in a million), as its code.
ALWAYS_INLINE VI covering_code(VF scale) {
  const VF wanted = scale * 0.999999f;
  const VI normal = ((as_int(wanted) + 0xfffff) >> 20) - kE4M3Bias;
  const VF fixed = wanted * 512.0f, near = vround(fixed);
  const VI small = __builtin_convertvector(near, VI) - (near < fixed);
  VI code = choose(wanted < 0x1p-6f, small, normal);
  code = choose(code < 1, VI{} + 1, code);
  return choose(code > kLargestCode, VI{} + kLargestCode, code);
}

ALWAYS_INLINE VF value_of_code(VI code) {
  const VF normal = as_float((code + kE4M3Bias) << 20);
  return choose(code < 8, __builtin_convertvector(code, VF) * 0x1p-9f, normal);
}

ALWAYS_INLINE VF within(VF x, float low, float high) {
  return fmin_lanes(fmax_lanes(x, VF{} + low), VF{} + high);
}

ALWAYS_INLINE VF over(VF x, float y) { return quotient(x, VF{} + y, VF{} + 1.0f / y); }

// The step that covers [low, high].
ALWAYS_INLINE VF full_step(VF low, VF high, float levels, int zero_point) {
  if (zero_point == COD_ZERO_WIDE) {
    const VF near = fmax_lanes(over(low, -COD_WIDE_LOWEST), over(low, -COD_WIDE_HIGHEST));
    return fmax_lanes(over(high - low, levels), near);
  }
  low = fmin_lanes(low, VF{}), high = fmax_lanes(high, VF{});
  if (zero_point == COD_ZERO_NONE) return over(fmax_lanes(-low, high) * 2.0f, levels);
  return over(high - low, levels);
}

struct Grid {
  VF step, inverse, bottom, top;  // codes q - z lie in bottom .. top
};

constexpr int kTogether = 4;  // candidates that are weighed in one walk over the values
constexpr int kBlocks = cod::kMaxLanes / W;

// Adds the squared errors of T candidates. SAME: they share their bounds, and the first one's codes
// begin at the lower one by themselves.
template <int T, bool SAME>
ALWAYS_INLINE void add_losses(const VF *v, int n, const Grid *grid, VF *loss) {
  VF low[T], high[T];
  for (int t = 0; t < T; t++) low[t] = grid[t].bottom + kMagic, high[t] = grid[t].top + kMagic;
  for (int k = 0; k < n; k++) {
    const VF x = v[k];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const VF rounded = vfma(x, grid[t].inverse, VF{} + kMagic);
      const int own = SAME ? 0 : t;
      const VF raised = SAME && t == 0 ? rounded : fmax_lanes(rounded, low[own]);
      const VF code = fmin_lanes(raised, high[own]) - kMagic;
      const VF error = vfnma(code, grid[t].step, x);
      loss[t] = vfma(error, error, loss[t]);
    }
  }
}

// The same where a value that falls to zero counts more.
ALWAYS_INLINE void add_weighted_loss(const VF *v, int n, const Grid &grid, float extra, VF &loss) {
  for (int k = 0; k < n; k++) {
    const VF rounded = vfma(v[k], grid.inverse, VF{} + kMagic) - kMagic;
    const VF code = fmin_lanes(fmax_lanes(rounded, grid.bottom), grid.top);
    const VF error = vfnma(code, grid.step, v[k]);
    loss += error * error * choose(code == 0.0f, VF{} + (1.0f + extra), VF{} + 1.0f);
  }
}

struct Range {
  VF low, high, zero;
  VI code;  // of the next scale to try
};

// NaN where a value is not finite, else 0.
ALWAYS_INLINE VF poison_of(const VF *v, int n) {
  VF bad{}, other{};
  for (int k = 0; k + 1 < n; k += 2) bad = vfma(v[k], VF{}, bad), other = vfma(v[k + 1], VF{}, other);
  if (n % 2) bad = vfma(v[n - 1], VF{}, bad);
  return bad + other;
}

// Several chains, so that none waits for its last link.
ALWAYS_INLINE void range_of(const VF *v, int n, VF &low, VF &high) {
  VF lows[4], highs[4];
  for (int i = 0; i < 4; i++) lows[i] = highs[i] = v[i < n ? i : 0];
  int k = 4;
  for (; k + 4 <= n; k += 4)
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      lows[i] = fmin_lanes(lows[i], v[k + i]);
      highs[i] = fmax_lanes(highs[i], v[k + i]);
    }
  for (; k < n; k++) lows[0] = fmin_lanes(lows[0], v[k]), highs[0] = fmax_lanes(highs[0], v[k]);
  low = fmin_lanes(fmin_lanes(lows[0], lows[1]), fmin_lanes(lows[2], lows[3]));
  high = fmax_lanes(fmax_lanes(highs[0], highs[1]), fmax_lanes(highs[2], highs[3]));
}

// The scale that covers [low, high] and the zero-point that goes with it.
ALWAYS_INLINE void cover(const cod::Weighing &w, Range &r) {
  VF full = full_step(r.low, r.high, w.levels, w.zero_point);
  if (w.given) full = fmin_lanes(full, VF{} + w.unit * 448.0f);  // the quotient must not overflow
  r.code = covering_code(over(full, w.unit));
  const VF start = w.zero_point == COD_ZERO_NONE ? full * w.levels / -2.0f : r.low;
  r.zero = within(vround(-start / (value_of_code(r.code) * w.unit)), 0.0f, w.levels);
}

// The grid of the next smaller scale.
ALWAYS_INLINE Grid next_grid(const cod::Weighing &w, Range &r) {
  Grid grid;
  grid.step = value_of_code(r.code) * w.unit, grid.inverse = reciprocal(grid.step);
  VF zero = r.zero;
  if (w.zero_point == COD_ZERO_WIDE) {  // shrink around the middle of the group, not around zero
    const VF middle = w.levels / 2.0f - (r.low + r.high) / (2.0f * grid.step);
    zero = within(vround(middle), COD_WIDE_LOWEST, COD_WIDE_HIGHEST);
  }
  grid.bottom = -zero, grid.top = w.levels - zero;
  r.code = choose(r.code > 1, r.code - 1, VI{} + 1);
  return grid;
}

// The grids with the least squared error among the scales that are tried, for `blocks` times W
// groups. Step by step over all of them: the numbers of one group depend on each other, those of
// the groups do not, and the processor always has some to work on.
static void weigh_blocks(VF *v, int blocks, const cod::Weighing &w, Grid *best) {
  const int n = w.group;
  VF poison[kBlocks]{};
  for (int b = 0; b < blocks && w.given; b++) {
    poison[b] = poison_of(v + b * n, n);
    const VI sound = poison[b] == 0.0f;
    if (vany(~sound))  // such a group gets a step of NaN; its grid must be one all the same
      for (int k = b * n; k < b * n + n; k++) v[k] = choose(sound, v[k], VF{});
  }
  Range range[kBlocks];
  Grid grid[kBlocks][kTogether];
  VF least[kBlocks];
  for (int b = 0; b < blocks; b++) range_of(v + b * n, n, range[b].low, range[b].high);
  for (int b = 0; b < blocks; b++) cover(w, range[b]);
  for (int done = 0; done < w.trials; done += kTogether) {
    const int count = w.trials - done < kTogether ? w.trials - done : kTogether;
    for (int b = 0; b < blocks; b++)
      for (int t = 0; t < count; t++) grid[b][t] = next_grid(w, range[b]);
    for (int b = 0; b < blocks; b++) {
      VF loss[kTogether]{};
      if (w.trials == 1) {
        best[b] = grid[b][0];
        continue;
      } else if (w.zero_weight != 0.0f) {
        for (int t = 0; t < count; t++)
          add_weighted_loss(v + b * n, n, grid[b][t], w.zero_weight, loss[t]);
      } else if (count > 1 && done == 0 && w.zero_point != COD_ZERO_WIDE) {
        if (count == 2) add_losses<2, true>(v + b * n, n, grid[b], loss);
        if (count == 3) add_losses<3, true>(v + b * n, n, grid[b], loss);
        if (count == 4) add_losses<4, true>(v + b * n, n, grid[b], loss);
      } else if (count == kTogether) {
        add_losses<kTogether, false>(v + b * n, n, grid[b], loss);
      } else {
        for (int t = 0; t < count; t++) add_losses<1, false>(v + b * n, n, grid[b] + t, loss + t);
      }
      for (int t = 0; t < count; t++) {
        // the first one counts even if its loss is beyond float32
        const VI better = done + t == 0 ? VI{} - 1 : (VI)(loss[t] < least[b]);
        least[b] = choose(better, loss[t], least[b]);
        best[b].step = choose(better, grid[b][t].step, best[b].step);
        best[b].inverse = choose(better, grid[b][t].inverse, best[b].inverse);
        best[b].bottom = choose(better, grid[b][t].bottom, best[b].bottom);
        best[b].top = choose(better, grid[b][t].top, best[b].top);
      }
    }
  }
  for (int b = 0; b < blocks; b++) best[b].step += poison[b];
}

// Adds the largest step of these lanes to `largest`; NaN where a value is not finite.
ALWAYS_INLINE void widen(const VF *v, int n, const cod::Weighing &w, VF &largest) {
  VF low, high;
  range_of(v, n, low, high);
  const VF step = full_step(low, high, w.levels, w.zero_point) + poison_of(v, n);
  // as integers: a NaN is larger than anything, and stays
  largest = as_float(umax(as_int(step) & 0x7fffffff, as_int(largest)));
}

template <int DISTANCE = W / 2, typename F>
ALWAYS_INLINE VF across(VF x, const F &join) {
  x = join(x, swap_lanes<DISTANCE>(x));
  if constexpr (DISTANCE > 1) return across<DISTANCE / 2>(x, join);
  return x;
}

// Whether no group among these values has a step above `known`; false where one is not finite.
ALWAYS_INLINE bool none_above(VF low, VF high, VF poison, const cod::Weighing &w, float known) {
  low = across(low, [](VF a, VF b) { return fmin_lanes(a, b); });
  high = across(high, [](VF a, VF b) { return fmax_lanes(a, b); });
  VF bound = full_step(low, high, w.levels, w.zero_point);
  // a group's least value may be the largest of all
  if (w.zero_point == COD_ZERO_WIDE) bound = fmax_lanes(bound, over(high, -COD_WIDE_LOWEST));
  return !vany(~(VI)(bound + poison <= VF{} + known));
}

ALWAYS_INLINE float largest_lane(VF largest) {
  uint32_t best = 0, one;
  for (int l = 0; l < W; l++) {
    const float lane = largest[l];
    __builtin_memcpy(&one, &lane, sizeof one);
    best = one > best ? one : best;
  }
  float found;
  __builtin_memcpy(&found, &best, sizeof found);
  return found;
}

ALWAYS_INLINE void load_groups(const cod::GroupBlock &block, int at, int n, VF *v) {
  const float *rows[W];
  for (int l = 0; l < W; l++) rows[l] = block.values[at + l < block.lanes ? at + l : block.lanes - 1];
  load_transposed(rows, n, v);
}

// Whether none of the groups [from, to) of a block has a step above `known`: their common range
// bounds that of each.
ALWAYS_INLINE bool passed_over(const cod::GroupBlock &block, int from, int to,
                               const cod::Weighing &w, float known) {
  // separate chains, so that none waits for its last link
  const VF any = load_lanes(block.values[from]);
  VF low = any, high = any, bad{}, other_low = any, other_high = any, other_bad{};
  for (int l = from; l < to; l += 2) {
    const float *x = block.values[l], *y = block.values[l + 1 < to ? l + 1 : l];
    for (int k = 0; k < w.group; k += W) {
      const VF a = load_lanes(x + k), b = load_lanes(y + k);
      low = fmin_lanes(low, a), high = fmax_lanes(high, a), bad = vfma(a, VF{}, bad);
      other_low = fmin_lanes(other_low, b), other_high = fmax_lanes(other_high, b);
      other_bad = vfma(b, VF{}, other_bad);
    }
  }
  return none_above(fmin_lanes(low, other_low), fmax_lanes(high, other_high), bad + other_bad, w,
                    known);
}

// The largest step of these groups, or `known` if none is larger.
static float widest(const cod::GroupBlock &block, const cod::Weighing &w, float known) {
  const bool whole = w.group % W == 0;
  if (whole && passed_over(block, 0, block.lanes, w, known)) return known;
  VF v[COD_MAX_GROUP], largest = VF{} + known;
  for (int at = 0; at < block.lanes; at += W) {
    const int end = at + W < block.lanes ? at + W : block.lanes;
    if (whole && passed_over(block, at, end, w, known)) continue;
    load_groups(block, at, w.group, v);
    widen(v, w.group, w, largest);
    known = largest_lane(largest);
  }
  return known;
}

static inline int32_t divide_group(const float *x, int n, float step, float bottom, float top,
                                   int8_t *codes) {
  int32_t sum = 0;
  for (int i = 0; i < n; i++) {
    float q = nearbyintf(x[i] / step);
    q = !(q >= bottom) ? bottom : q > top ? top : q;  // NaN has the lowest code, under a step of NaN
    sum += codes[i] = (int8_t)q;
  }
  return sum;
}

static void weigh(const cod::GroupBlock &block, const cod::Weighing &w, cod::WeighedResult &out) {
  VF v[kBlocks * COD_MAX_GROUP];
  Grid best[kBlocks];
  const int blocks = (block.lanes + W - 1) / W;
  for (int b = 0; b < blocks; b++) load_groups(block, b * W, w.group, v + b * w.group);
  weigh_blocks(v, blocks, w, best);
  for (int b = 0; b < blocks; b++) {
    const int at = b * W, end = at + W < block.lanes ? at + W : block.lanes;
    store_lanes(best[b].step, out.step + at);
    store_lanes(best[b].inverse, out.inverse + at);
    store_lanes(best[b].bottom, out.bottom + at);
    store_lanes(best[b].top, out.top + at);
    if (w.divide || !encode_between(block, at, end, w.group, out))
      for (int l = at; l < end; l++)
        out.sums[l] = divide_group(block.values[l], w.group, out.step[l], out.bottom[l], out.top[l],
                                   block.codes[l]);
    if (!w.given || !vany(~(VI)(best[b].step == best[b].step))) continue;
    for (int l = at; l < end; l++)
      if (out.step[l] != out.step[l])
        out.sums[l] = 0, __builtin_memset(block.codes[l], 0, (size_t)w.group);
  }
}

ALWAYS_INLINE void load_pixels(const float *const *rows, int n, int64_t c, int64_t left, VF *v) {
  if (left >= W) {
    for (int k = 0; k < n; k++) v[k] = load_lanes(rows[k] + c);
    return;
  }
  for (int k = 0; k < n; k++) {
    v[k] = VF{};
    __builtin_memcpy(&v[k], rows[k] + c, (size_t)left * sizeof(float));
  }
}

static float widest_pixels(const float *const *rows, int64_t channels, const cod::Weighing &w) {
  VF v[COD_MAX_GROUP], largest{};
  for (int64_t c = 0; c < channels; c += W) {
    load_pixels(rows, w.group, c, channels - c, v);
    widen(v, w.group, w, largest);
  }
  return largest_lane(largest);
}

// Codes of W channels from c on, of the first `valid` pixels.
ALWAYS_INLINE void encode_pixels(const VF *v, const Grid &grid, int valid, bool divide, int64_t c,
                                 int64_t left, int8_t *const *codes) {
  // x / step lies between x times these two: where both give one code, so does the quotient
  const VF hi = grid.inverse * (1.0f + cod::kMargin), lo = grid.inverse * (1.0f - cod::kMargin);
  const VF low = grid.bottom + kMagic, high = grid.top + kMagic;
  VI differ{};
  if (left >= W && !divide) {
    for (int k = 0; k < valid; k++) {
      const VF up = vfma(v[k], hi, VF{} + kMagic), down = vfma(v[k], lo, VF{} + kMagic);
      differ |= as_int(up) ^ as_int(down);
      const VF code = fmin_lanes(fmax_lanes(up, low), high);
      store_codes(as_int(code) - as_int(VF{} + kMagic), codes[k] + c);
    }
    if (__builtin_expect(!vany(differ), 1)) return;
  }
  for (int k = 0; k < valid; k++) {
    const VF code = fmin_lanes(fmax_lanes(vround(v[k] / grid.step), grid.bottom), grid.top);
    for (int64_t l = 0; l < W && l < left; l++) codes[k][c + l] = (int8_t)code[l];
  }
}

static void weigh_pixels(const float *const *rows, int64_t channels, const cod::Weighing &w, int valid,
                         int8_t *const *codes, float *step) {
  VF v[kBlocks * COD_MAX_GROUP];
  Grid best[kBlocks];
  for (int64_t from = 0; from < channels; from += cod::kMaxLanes) {
    const int64_t lanes = channels - from < cod::kMaxLanes ? channels - from : cod::kMaxLanes;
    const int blocks = (int)((lanes + W - 1) / W);
    for (int b = 0; b < blocks; b++)
      load_pixels(rows, w.group, from + b * W, lanes - b * W, v + b * w.group);
    weigh_blocks(v, blocks, w, best);
    for (int b = 0; b < blocks; b++) {
      const int64_t c = from + b * W, left = channels - c;
      encode_pixels(v + b * w.group, best[b], valid, w.divide, c, left, codes);
      __builtin_memcpy(step + c, &best[b].step, (size_t)(left < W ? left : W) * sizeof(float));
      if (!w.given || !vany(~(VI)(best[b].step == best[b].step))) continue;
      for (int64_t l = 0; l < W && l < left; l++)
        for (int k = 0; k < valid && best[b].step[l] != best[b].step[l]; k++) codes[k][c + l] = 0;
    }
  }
}

template <int DISTANCE>
struct Signs {
  float of[W];
  constexpr Signs() : of() {
    for (int l = 0; l < W; l++) of[l] = l & DISTANCE ? -1.0f : 1.0f;
  }
};
template <int DISTANCE>
constexpr Signs<DISTANCE> kSigns;

template <int DISTANCE>
ALWAYS_INLINE void butterfly(VF *v) {
  constexpr int kCount = 32 / W;
  if constexpr (DISTANCE >= W) {
    for (int i = 0; i < kCount; i++) {
      if (i & (DISTANCE / W)) continue;
      const VF a = v[i], b = v[i + DISTANCE / W];
      v[i] = a + b, v[i + DISTANCE / W] = a - b;
    }
  } else {
    const VF sign = load_lanes(kSigns<DISTANCE>.of);
    for (int i = 0; i < kCount; i++) v[i] = vfma(v[i], sign, swap_lanes<DISTANCE>(v[i]));
  }
}

// W values of (x[order] - shift) / scale, from the i-th on.
ALWAYS_INLINE VF moved_lanes(const float *x, int64_t i, const cod_transform &t) {
  VF v = t.order ? gather_lanes(x, t.order + i) : load_lanes(x + i);
  if (t.shift) v -= load_lanes(t.shift + i);
  if (t.scale) v = quotient(v, load_lanes(t.scale + i), load_lanes(t.inverse + i));
  return v;
}

// y = R((x[order] - shift) / scale) with shift and scale in the new order; R rotates whole blocks of
// 32 values. Same operations in the same order as torch's, so that no bit differs.
static void transform(const float *x, int64_t n, const cod_transform &t, float *y) {
  const bool moved = t.order || t.shift || t.scale;
  const int64_t rotated = t.hadamard ? n / 32 * 32 : 0;
  int64_t i = moved ? 0 : rotated;
  for (; i + W <= n; i += W) store_lanes(moved_lanes(x, i, t), y + i);
  for (; i < n; i++) {
    y[i] = x[t.order ? t.order[i] : i];
    if (t.shift) y[i] -= t.shift[i];
    if (t.scale) y[i] /= t.scale[i];
  }
  constexpr float kRoot = 5.656854249492381f;  // of 32
  for (int64_t at = 0; at < rotated; at += 32) {
    VF v[32 / W];
    for (int j = 0; j < 32 / W; j++) v[j] = load_lanes((moved ? y : x) + at + j * W);
    butterfly<1>(v);
    butterfly<2>(v);
    butterfly<4>(v);
    butterfly<8>(v);
    butterfly<16>(v);
    for (int j = 0; j < 32 / W; j++)
      store_lanes(quotient(v[j], VF{} + kRoot, VF{} + 1.0f / kRoot), y + at + j * W);
  }
}

}  // namespace
