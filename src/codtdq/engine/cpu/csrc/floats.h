// Float loops of programs: elementwise functions, sums in a fixed order, norms, softmax. Nothing
// is fused here but products, and these with every set: sets give the same bits.
#pragma once
#include "float_kernels.h"
#include "pointwise.h"

namespace cod {
namespace {

template <class Isa>
struct FloatLoops {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  static constexpr int W = Isa::kWidth, kParts = 16, kVectors = kParts / W;

  // e^x within 2e-7 of it, 0 below -87.3 and infinity above 88.7: 2^n times a polynomial of the
  // rest, whose coefficients are those of Taylor's series, trimmed.
  COD_INLINE Floats exponential(Floats x) {
    const Ints low = x < -87.3f, high = x > 88.7f;
    const Floats c = Isa::choose(low, Isa::all(-87.3f), Isa::choose(high, Isa::all(88.7f), x));
    const Floats n = c * 1.44269504f + kMagic - kMagic;
    const Floats r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
    Floats p = Isa::all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    // in two steps: 2^128 has no float
    const Ints whole = Isa::as_ints(n + kMagic) - kMagicBits, half = whole >> 1;
    const Floats first = Isa::as_floats((half + 127) << 23);
    const Floats second = Isa::as_floats((whole - half + 127) << 23);
    const Floats y = p * first * second;
    return Isa::choose(low, Floats{}, Isa::choose(high, Isa::all(__builtin_inff()), y));
  }
  COD_INLINE Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }
  // 1 - 2 / (e^2x + 1), and near zero, where that cancels, a polynomial.
  COD_INLINE Floats tangent(Floats x) {
    const Floats z = x * x;
    Floats p = Isa::all(-5.70498872745e-3f);
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    p = p * z * x + x;
    const Floats far = 1.0f - 2.0f / (exponential(x + x) + 1.0f);
    return Isa::choose(Isa::as_floats(Isa::magnitude(x)) < 0.625f, p, far);
  }

  // Sine and cosine: the nearest quarter turn is taken off in three parts; numbers that are too
  // large for that go to the C library, one by one.
  COD_INLINE Floats wave(Floats x, int quarter) {
    const Ints large = ~(Isa::as_floats(Isa::magnitude(x)) < 8192.0f);
    if (__builtin_expect(Isa::any(large), 0)) {
      for (int l = 0; l < W; l++) x[l] = quarter ? __builtin_cosf(x[l]) : __builtin_sinf(x[l]);
      return x;
    }
    const Floats lifted = x * 0.636619772f + kMagic, n = lifted - kMagic;
    const Ints turn = Isa::as_ints(lifted) - kMagicBits + quarter;
    const Floats r = ((x - n * 1.5703125f) - n * 4.83751297e-4f) - n * 7.54978942e-8f;
    const Floats z = r * r;
    Floats sine = Isa::all(-1.9515295891e-4f), cosine = Isa::all(2.443315711809948e-5f);
    sine = sine * z + 8.3321608736e-3f;
    sine = sine * z - 1.6666654611e-1f;
    sine = sine * z * r + r;
    cosine = cosine * z - 1.388731625493765e-3f;
    cosine = cosine * z + 4.166664568298827e-2f;
    cosine = cosine * z * z - 0.5f * z + 1.0f;
    const Floats y = Isa::choose((turn & 1) != 0, cosine, sine);
    return Isa::choose((turn & 2) != 0, -y, y);
  }

  COD_INLINE Floats root(Floats x) {
    for (int l = 0; l < W; l++) x[l] = __builtin_sqrtf(x[l]);
    return x;
  }

  template <int OP>
  COD_INLINE Floats apply(Floats x, float a, float b) {
    if constexpr (OP == kRelu) return Isa::choose(x < 0.0f, Floats{}, x);
    if constexpr (OP == kGelu) return Pointwise<Isa>::gelu_lanes(x);
    if constexpr (OP == kGeluTanh)
      return 0.5f * x * (1.0f + tangent(0.79788456f * (x + 0.044715f * x * x * x)));
    if constexpr (OP == kSigmoid) return sigmoid(x);
    if constexpr (OP == kSilu) return x * sigmoid(x);
    if constexpr (OP == kTanh) return tangent(x);
    if constexpr (OP == kHardswish) return x * clamped(x + 3.0f, 0.0f, 6.0f) / 6.0f;
    if constexpr (OP == kHardsigmoid) return clamped(x + 3.0f, 0.0f, 6.0f) / 6.0f;
    if constexpr (OP == kExp) return exponential(x);
    if constexpr (OP == kSqrt) return root(x);
    if constexpr (OP == kRsqrt) return 1.0f / root(x);
    if constexpr (OP == kAbs) return Isa::as_floats(Isa::magnitude(x));
    if constexpr (OP == kNegate) return -x;
    if constexpr (OP == kReciprocal) return 1.0f / x;
    if constexpr (OP == kClamp) return clamped(x, a, b);
    if constexpr (OP == kCos) return wave(x, 1);
    if constexpr (OP == kSin) return wave(x, 0);
    if constexpr (OP == kLeakyRelu) return Isa::choose(x < 0.0f, x * a, x);
    if constexpr (OP == kFloor) {
      const Floats near = Isa::round(x);
      return Isa::choose(near > x, near - 1.0f, near);
    }
    if constexpr (OP == kSquare) return x * x;
    return x;
  }
  COD_INLINE Floats clamped(Floats x, float low, float high) {
    const Floats up = Isa::choose(x < low, Isa::all(low), x);
    return Isa::choose(up > high, Isa::all(high), up);
  }

  template <int OP>
  static void unary_loop(float a, float b, const float *x, int64_t n, float *y) {
    int64_t i = 0;
    for (; i + W <= n; i += W) Isa::store(apply<OP>(Isa::load(x + i), a, b), y + i);
    if (i < n) Isa::store_some(apply<OP>(Isa::load_some(x + i, n - i), a, b), y + i, n - i);
  }

  template <int OP = 0>
  static void unary(int op, float a, float b, const float *x, int64_t n, float *y) {
    if constexpr (OP < kUnaryOps) {
      if (op == OP) return unary_loop<OP>(a, b, x, n, y);
      unary<OP + 1>(op, a, b, x, n, y);
    }
  }

  template <int OP>
  COD_INLINE Floats apply(Floats x, Floats z) {
    if constexpr (OP == kAdd) return x + z;
    if constexpr (OP == kSubtract) return x - z;
    if constexpr (OP == kMultiply) return x * z;
    if constexpr (OP == kDivide) return x / z;
    if constexpr (OP == kMaximum) return Isa::choose(x > z, x, Isa::choose(x != x, x, z));
    return Isa::choose(x < z, x, Isa::choose(x != x, x, z));
  }
  template <int OP>
  static void binary_loop(const float *x, int64_t xs, const float *z, int64_t zs, int64_t n,
                          float *y) {
    const Floats one_x = Isa::all(*x), one_z = Isa::all(*z);
    int64_t i = 0;
    for (; i + W <= n; i += W)
      Isa::store(apply<OP>(xs ? Isa::load(x + i) : one_x, zs ? Isa::load(z + i) : one_z), y + i);
    if (i < n)
      Isa::store_some(apply<OP>(xs ? Isa::load_some(x + i, n - i) : one_x,
                                zs ? Isa::load_some(z + i, n - i) : one_z),
                      y + i, n - i);
  }
  template <int OP = 0>
  static void binary(int op, const float *x, int64_t xs, const float *z, int64_t zs, int64_t n,
                     float *y) {
    if constexpr (OP < kBinaryOps) {
      if (op == OP) return binary_loop<OP>(x, xs, z, zs, n, y);
      binary<OP + 1>(op, x, xs, z, zs, n, y);
    }
  }

  // The 16 parts, joined in halves.
  static float joined(const Floats *part) {
    float all[kParts];
    for (int v = 0; v < kVectors; v++) Isa::store(part[v], all + v * W);
    for (int half = kParts / 2; half > 0; half /= 2)
      for (int i = 0; i < half; i++) all[i] += all[i + half];
    return all[0];
  }
  template <typename F>
  COD_INLINE float summed(const float *x, int64_t n, const F &value) {
    Floats part[kVectors];
    for (int v = 0; v < kVectors; v++) part[v] = Floats{};
    int64_t i = 0;
    for (; i + kParts <= n; i += kParts)
      for (int v = 0; v < kVectors; v++) part[v] = part[v] + value(Isa::load(x + i + v * W));
    for (int v = 0; v < kVectors && i < n; v++, i += W) {
      const int64_t left = n - i < W ? n - i : W;
      float some[W] = {};
      Isa::store(value(Isa::load_some(x + i, left)), some);
      part[v] = part[v] + Isa::load_some(some, left);
    }
    return joined(part);
  }
  static float sum(const float *x, int64_t n) {
    return summed(x, n, [](Floats v) { return v; });
  }
  static float squares(const float *x, int64_t n, float middle) {
    return summed(x, n, [middle](Floats v) { return (v - middle) * (v - middle); });
  }
  static float largest(const float *x, int64_t n) {
    Floats best = Isa::all(x[0]);
    Ints bad{};
    for (int64_t i = 0; i < n; i += W) {
      const int64_t left = n - i;
      Floats v = left >= W ? Isa::load(x + i) : Isa::load_some(x + i, left);
      for (int64_t l = left; l < W; l++) v[l] = x[0];
      best = Isa::choose(v > best, v, best);
      bad = bad | (v != v);
    }
    if (Isa::any(bad)) return __builtin_nanf("");
    float found = best[0];
    for (int l = 1; l < W; l++) found = best[l] > found ? best[l] : found;
    return found;
  }

  static void normalize(const float *x, int64_t n, float middle, float scale, const float *weight,
                        const float *bias, float *y) {
    for (int64_t i = 0; i < n; i += W) {
      const int64_t left = n - i;
      const bool whole = left >= W;
      Floats v = ((whole ? Isa::load(x + i) : Isa::load_some(x + i, left)) - middle) * scale;
      if (weight) v = v * (whole ? Isa::load(weight + i) : Isa::load_some(weight + i, left));
      if (bias) v = v + (whole ? Isa::load(bias + i) : Isa::load_some(bias + i, left));
      if (whole)
        Isa::store(v, y + i);
      else
        Isa::store_some(v, y + i, left);
    }
  }

  static void softmax(const float *x, int64_t n, float *y) {
    const float top = largest(x, n);
    const float zero = top == -__builtin_inff() ? 0.0f : top;
    for (int64_t i = 0; i < n; i += W) {
      const int64_t left = n - i;
      if (left >= W)
        Isa::store(exponential(Isa::load(x + i) - zero), y + i);
      else
        Isa::store_some(exponential(Isa::load_some(x + i, left) - zero), y + i, left);
    }
    const float inverse = 1.0f / sum(y, n);
    binary_loop<kMultiply>(y, 1, &inverse, 0, n, y);
  }

  static void mix(const float *x, const float *z, float share, int64_t n, float *y) {
    int64_t i = 0;
    for (; i + W <= n; i += W) {
      const Floats from = Isa::load(x + i);
      Isa::store(from + (Isa::load(z + i) - from) * share, y + i);
    }
    for (; i < n; i++) y[i] = x[i] + (z[i] - x[i]) * share;
  }

  // ---- products

  static constexpr int kRows = W == 4 ? 4 : 6, kMostVectors = W == 16 ? 4 : 2;

  template <int V>
  static void tile_of(const FloatTile &in) {
    Floats sum[kRows][V];
    for (int r = 0; r < kRows; r++)
      for (int v = 0; v < V; v++) sum[r][v] = Floats{};
    const float *w = in.w;
    for (int64_t t = 0; t < in.taps; t++) {
      const float *const *x = in.x + t * kRows;
      for (int64_t k = 0; k < in.depth; k++, w += V * W) {
        Floats column[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) column[v] = Isa::load(w + v * W);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; r++) {
          const Floats own = Isa::all(x[r][k]);
#pragma GCC unroll 4
          for (int v = 0; v < V; v++) sum[r][v] = fused<Isa>(own, column[v], sum[r][v]);
        }
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) {
      if (r >= in.rows) break;
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) {
        const int left = in.columns - v * W;
        if (left <= 0) break;
        Floats y = sum[r][v];
        float *to = in.y + r * in.stride + v * W;
        if (left >= W) {
          Isa::store(in.bias ? y + Isa::load(in.bias + v * W) : y, to);
        } else {
          Isa::store_some(in.bias ? y + Isa::load_some(in.bias + v * W, left) : y, to, left);
        }
      }
    }
  }
  static void tile(const FloatTile &in) {
    if constexpr (kMostVectors == 4) {
      if (in.vectors == 4) return tile_of<4>(in);
      if (in.vectors == 3) return tile_of<3>(in);
    }
    return in.vectors == 2 ? tile_of<2>(in) : tile_of<1>(in);
  }

  static constexpr FloatKernels table() {
    FloatKernels k{};
    k.unary = unary<0>;
    k.binary = binary<0>;
    k.sum = sum;
    k.squares = squares;
    k.largest = largest;
    k.normalize = normalize;
    k.softmax = softmax;
    k.mix = mix;
    k.rows = kRows;
    k.width = W;
    k.vectors = kMostVectors;
    k.tile = tile;
    return k;
  }
};

}  // namespace
}  // namespace cod
