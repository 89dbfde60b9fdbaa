// Elementwise loops that every compiler vectorises: written once, compiled for every set.
// erf(x) = x P(x^2) / Q(x^2) on |x| <= 4, where float32 erf is 1; fitted for this project, largest
// absolute error 5e-7 in float32 (benchmarks/fit_erf.py).

namespace {

constexpr float kErfP[] = {1.128379175e+00f, 1.694736031e-01f, 5.146849466e-02f, 3.088805154e-03f,
                           3.187635442e-04f, 5.273621607e-07f, -4.021358742e-08f};
constexpr float kErfQ[] = {1.0f,             4.835255141e-01f, 1.067874051e-01f, 1.379133755e-02f,
                           1.082263110e-03f, 4.487691744e-05f, -5.246176703e-07f};

static inline float erf_approx(float x) {
  x = x > 4.0f ? 4.0f : x;
  x = x < -4.0f ? -4.0f : x;
  const float z = x * x;
  float p = kErfP[6], q = kErfQ[6];
#pragma GCC unroll 6
  for (int i = 5; i >= 0; i--) p = p * z + kErfP[i];
#pragma GCC unroll 6
  for (int i = 5; i >= 0; i--) q = q * z + kErfQ[i];
  return x * p / q;
}

static inline float gelu_of(float x) {
  return 0.5f * x * (1.0f + erf_approx(x * 0.70710678118654752f));
}

static void gelu(const float *x, int64_t n, float *y) {
  for (int64_t i = 0; i < n; i++) y[i] = gelu_of(x[i]);
}

static void activate(float *y, int64_t n, int activation) {
  if (activation == COD_ACT_GELU)
    for (int64_t i = 0; i < n; i++) y[i] = gelu_of(y[i]);
  else if (activation == COD_ACT_RELU)
    for (int64_t i = 0; i < n; i++) y[i] = y[i] < 0.0f ? 0.0f : y[i];
}

static void magnitudes(const float *x, int64_t n, bool each, int32_t *best) {
  if (each) {
    for (int64_t i = 0; i < n; i++) {
      int32_t bits;
      __builtin_memcpy(&bits, x + i, 4);
      bits &= 0x7fffffff;
      best[i] = bits > best[i] ? bits : best[i];
    }
    return;
  }
  int32_t largest = best[0];
  for (int64_t i = 0; i < n; i++) {
    int32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  best[0] = largest;
}

static void multiply_add(const float *x, const float *w, int64_t n, float *y) {
  for (int64_t i = 0; i < n; i++) y[i] += x[i] * w[i];
}

}  // namespace
