// Depthwise convolution, channels across lanes: written once, compiled for every set.
// The including file defines W, VF and codes_as_floats(W codes) -> VF.

namespace {

constexpr int kDeep = 4;  // vectors that are summed side by side, to hide the latency of adding

static inline VF load_floats(const float *x) {
  VF v;
  __builtin_memcpy(&v, x, sizeof v);
  return v;
}

static void dequantize(const int8_t *codes, int64_t n, float step, float *x_hat) {
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const VF v = codes_as_floats(codes + i) * step;
    __builtin_memcpy(x_hat + i, &v, sizeof v);
  }
  for (; i < n; i++) x_hat[i] = (float)codes[i] * step;
}

static void dequantize_each(const int8_t *codes, int64_t n, const float *step, float *x_hat) {
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const VF v = codes_as_floats(codes + i) * load_floats(step + i);
    __builtin_memcpy(x_hat + i, &v, sizeof v);
  }
  for (; i < n; i++) x_hat[i] = (float)codes[i] * step[i];
}

template <int N>
static inline void depthwise_vectors(const cod::DepthwisePixel &p, int64_t c) {
  VF sum[N];
  for (int i = 0; i < N; i++) sum[i] = p.bias ? load_floats(p.bias + c + i * W) : VF{};
  for (int t = 0; t < p.taps; t++) {
    const float *x = p.x[t], *w = p.weight + t * p.weight_stride;
    if (!x) continue;
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) sum[i] += load_floats(x + c + i * W) * load_floats(w + c + i * W);
  }
  for (int i = 0; i < N; i++) __builtin_memcpy(p.y + c + i * W, &sum[i], sizeof(VF));
}

static void depthwise(const cod::DepthwisePixel &p, int64_t n) {
  int64_t c = 0;
  for (; c + kDeep * W <= n; c += kDeep * W) depthwise_vectors<kDeep>(p, c);
  for (; c + W <= n; c += W) depthwise_vectors<1>(p, c);
  for (; c < n; c++) {
    float sum = p.bias ? p.bias[c] : 0.0f;
    for (int t = 0; t < p.taps; t++)
      if (p.x[t]) sum += p.x[t][c] * p.weight[t * p.weight_stride + c];
    p.y[c] = sum;
  }
}

}  // namespace
