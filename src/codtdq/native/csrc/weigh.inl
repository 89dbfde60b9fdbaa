// Ranges that are weighed, groups across lanes: written once, compiled for every set.
// The including file defines W, VF, VI, fmin_lanes, fmax_lanes, vfma, vround, vany, load_transposed,
// swap_lanes<distance>, store_codes(VF, codes) and encode_between; kMagic is that of guard.inl.

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

// The step that covers [low, high].
ALWAYS_INLINE VF full_step(VF low, VF high, float levels, int zero_point) {
  if (zero_point == COD_ZERO_WIDE) {
    const VF near = fmax_lanes(low / (float)-COD_WIDE_LOWEST, low / (float)-COD_WIDE_HIGHEST);
    return fmax_lanes((high - low) / levels, near);
  }
  low = fmin_lanes(low, VF{}), high = fmax_lanes(high, VF{});
  if (zero_point == COD_ZERO_NONE) return fmax_lanes(-low, high) * 2.0f / levels;
  return (high - low) / levels;
}

struct Grid {
  VF step, inverse, bottom, top;  // codes q - z lie in bottom .. top
};

template <int T, bool EXTRA>
ALWAYS_INLINE void add_losses(const VF *v, int n, const Grid *grid, float extra, VF *loss) {
  VF low[T], high[T];
  for (int t = 0; t < T; t++) low[t] = grid[t].bottom + kMagic, high[t] = grid[t].top + kMagic;
  for (int k = 0; k < n; k++) {
    const VF x = v[k];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const VF rounded = vfma(x, grid[t].inverse, VF{} + kMagic);
      const VF code = fmin_lanes(fmax_lanes(rounded, low[t]), high[t]) - kMagic;
      const VF error = code * grid[t].step - x;
      if (EXTRA)
        loss[t] += error * error * choose(code == 0.0f, VF{} + (1.0f + extra), VF{} + 1.0f);
      else
        loss[t] = vfma(error, error, loss[t]);
    }
  }
}

constexpr int kTogether = 4;  // candidates that are weighed in one walk over the values

// The grid of each lane's group with the least squared error among the scales that are tried.
ALWAYS_INLINE Grid weigh_lanes(const VF *v, int n, const cod::Weighing &w) {
  VF low = v[0], high = v[0];
  for (int k = 1; k < n; k++) low = fmin_lanes(low, v[k]), high = fmax_lanes(high, v[k]);
  const VF full = full_step(low, high, w.levels, w.zero_point);
  VI code = covering_code(full / w.unit);
  const bool wide = w.zero_point == COD_ZERO_WIDE;
  const VF first = value_of_code(code) * w.unit;
  const VF start = w.zero_point == COD_ZERO_NONE ? full * w.levels / -2.0f : low;
  const VF zero = within(vround(-start / first), 0.0f, w.levels);
  Grid best{first, VF{} + 1.0f, -zero, w.levels - zero}, grid[kTogether];
  VF least = VF{} + __builtin_inff();
  for (int done = 0; done < w.trials; done += kTogether) {
    const int count = w.trials - done < kTogether ? w.trials - done : kTogether;
    VF loss[kTogether];
    for (int t = 0; t < kTogether; t++) {
      Grid &g = grid[t];
      g.step = value_of_code(code) * w.unit, g.inverse = 1.0f / g.step;
      g.bottom = -zero, g.top = w.levels - zero;
      if (wide) {  // shrink around the middle of the group, not around zero
        const VF middle = w.levels / 2.0f - (low + high) / (2.0f * g.step);
        const VF own = within(vround(middle), COD_WIDE_LOWEST, COD_WIDE_HIGHEST);
        g.bottom = -own, g.top = w.levels - own;
      }
      code = choose(code > 1, code - 1, VI{} + 1);
      loss[t] = VF{};
    }
    if (w.trials == 1) return grid[0];
    if (w.zero_weight != 0.0f) {
      for (int t = 0; t < count; t++) add_losses<1, true>(v, n, grid + t, w.zero_weight, loss + t);
    } else if (count == kTogether) {
      add_losses<kTogether, false>(v, n, grid, 0.0f, loss);
    } else {
      for (int t = 0; t < count; t++) add_losses<1, false>(v, n, grid + t, 0.0f, loss + t);
    }
    for (int t = 0; t < count; t++) {
      // the first one counts even if its loss is beyond float32
      const VI better = done + t == 0 ? VI{} - 1 : (VI)(loss[t] < least);
      least = choose(better, loss[t], least);
      best.step = choose(better, grid[t].step, best.step);
      best.inverse = choose(better, grid[t].inverse, best.inverse);
      best.bottom = choose(better, grid[t].bottom, best.bottom);
      best.top = choose(better, grid[t].top, best.top);
    }
  }
  return best;
}

// Adds the largest step of these lanes to `largest`; NaN where a value is not finite.
ALWAYS_INLINE void widen(const VF *v, int n, const cod::Weighing &w, VF &largest) {
  VF low = v[0], high = v[0], poison = v[0] * 0.0f;
  for (int k = 1; k < n; k++) {
    low = fmin_lanes(low, v[k]), high = fmax_lanes(high, v[k]);
    poison = vfma(v[k], VF{}, poison);
  }
  const VF step = full_step(low, high, w.levels, w.zero_point) + poison;
  // as integers: a NaN is larger than anything, and stays
  largest = as_float(umax(as_int(step) & 0x7fffffff, as_int(largest)));
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

static float widest(const cod::GroupBlock &block, const cod::Weighing &w) {
  VF v[COD_MAX_GROUP], largest{};
  for (int at = 0; at < block.lanes; at += W) {
    load_groups(block, at, w.group, v);
    widen(v, w.group, w, largest);
  }
  return largest_lane(largest);
}

static inline int32_t divide_group(const float *x, int n, float step, float bottom, float top,
                                   int8_t *codes) {
  int32_t sum = 0;
  for (int i = 0; i < n; i++) {
    float q = nearbyintf(x[i] / step);
    q = q < bottom ? bottom : q > top ? top : q;
    sum += codes[i] = (int8_t)q;
  }
  return sum;
}

static void weigh(const cod::GroupBlock &block, const cod::Weighing &w, cod::WeighedResult &out) {
  VF v[COD_MAX_GROUP];
  for (int at = 0; at < block.lanes; at += W) {
    load_groups(block, at, w.group, v);
    const Grid grid = weigh_lanes(v, w.group, w);
    store_lanes(grid.step, out.step + at);
    store_lanes(grid.inverse, out.inverse + at);
    store_lanes(grid.bottom, out.bottom + at);
    store_lanes(grid.top, out.top + at);
  }
  for (int at = 0; at < block.lanes; at += W) {
    const int end = at + W < block.lanes ? at + W : block.lanes;
    if (!w.divide && encode_between(block, at, end, w.group, out)) continue;
    for (int l = at; l < end; l++)
      out.sums[l] = divide_group(block.values[l], w.group, out.step[l], out.bottom[l], out.top[l],
                                 block.codes[l]);
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

static void weigh_pixels(const float *const *rows, int64_t channels, const cod::Weighing &w, int valid,
                         int8_t *const *codes, float *step) {
  VF v[COD_MAX_GROUP];
  for (int64_t c = 0; c < channels; c += W) {
    const int64_t left = channels - c < W ? channels - c : W;
    load_pixels(rows, w.group, c, left, v);
    const Grid grid = weigh_lanes(v, w.group, w);
    __builtin_memcpy(step + c, &grid.step, (size_t)left * sizeof(float));
    // x / step lies between x times these two: where both give one code, so does the quotient
    const VF hi = grid.inverse * (1.0f + 0x1p-22f), lo = grid.inverse * (1.0f - 0x1p-22f);
    const VF low = grid.bottom + kMagic, high = grid.top + kMagic;
    VI differ{};
    for (int k = 0; k < w.group; k++) {
      const VF up = vfma(v[k], hi, VF{} + kMagic), down = vfma(v[k], lo, VF{} + kMagic);
      differ |= as_int(up) ^ as_int(down);
      if (k < valid) {
        const VF code = fmin_lanes(fmax_lanes(up, low), high) - kMagic;
        if (left == W) {
          store_codes(code, codes[k] + c);
        } else {
          for (int64_t l = 0; l < left; l++) codes[k][c + l] = (int8_t)code[l];
        }
      }
    }
    if (__builtin_expect(!w.divide && !vany(differ), 1)) continue;
    for (int k = 0; k < valid; k++) {
      const VF code = fmin_lanes(fmax_lanes(vround(v[k] / grid.step), grid.bottom), grid.top);
      for (int64_t l = 0; l < left; l++) codes[k][c + l] = (int8_t)code[l];
    }
  }
}

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
    VF sign;
    for (int l = 0; l < W; l++) sign[l] = l & DISTANCE ? -1.0f : 1.0f;
    for (int i = 0; i < kCount; i++) v[i] = swap_lanes<DISTANCE>(v[i]) + v[i] * sign;
  }
}

// y = R((x[order] - shift) / scale) with shift and scale in the new order; R rotates whole blocks of
// 32 values. Same operations in the same order as torch's, so that no bit differs.
static void transform(const float *x, int64_t n, const cod_transform &t, float *y) {
  if (t.order)
    for (int64_t i = 0; i < n; i++) y[i] = x[t.order[i]];
  else if (y != x)
    __builtin_memcpy(y, x, (size_t)n * sizeof(float));
  if (t.shift)
    for (int64_t i = 0; i < n; i++) y[i] -= t.shift[i];
  if (t.scale)
    for (int64_t i = 0; i < n; i++) y[i] /= t.scale[i];
  if (!t.hadamard) return;
  for (int64_t at = 0; at + 32 <= n; at += 32) {
    VF v[32 / W];
    __builtin_memcpy(v, y + at, sizeof v);
    butterfly<1>(v);
    butterfly<2>(v);
    butterfly<4>(v);
    butterfly<8>(v);
    butterfly<16>(v);
    for (VF &one : v) one /= 5.656854249492381f;
    __builtin_memcpy(y + at, v, sizeof v);
  }
}

}  // namespace
