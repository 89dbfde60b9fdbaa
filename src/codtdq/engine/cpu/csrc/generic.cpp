// Plain C++ for any processor: the definition that the others are tested against.
#include <cmath>

#include "kernels.h"

#define W 4
typedef float VF __attribute__((vector_size(16)));
typedef int32_t VI __attribute__((vector_size(16)));

typedef uint32_t VU __attribute__((vector_size(16)));
static inline VI kmin(VI a, VI b) {
  VI m = (VI)((VU)a < (VU)b);
  return (a & m) | (b & ~m);
}
static inline VI umax(VI a, VI b) {
  VI m = (VI)((VU)a > (VU)b);
  return (a & m) | (b & ~m);
}
static inline VI kmax(VI a, VI b) { return umax(a, b); }
// One less than the bits of a magnitude: as unsigned numbers, zero comes last.
static constexpr int32_t kLastKey = -1;
static inline VI key_of(VI magnitude, int omit) { return magnitude - omit; }
static inline VI magnitude_of(VI key, int omit) { return key + omit; }
static inline bool vany(VI x) { return (x[0] | x[1] | x[2] | x[3]) != 0; }
static inline VF vfma(VF x, VF y, VF z) { return x * y + z; }
static inline VF vfnma(VF x, VF y, VF z) { return z - x * y; }
static inline VF fmin_lanes(VF x, VF y) {
  for (int l = 0; l < W; l++) x[l] = x[l] < y[l] ? x[l] : y[l];
  return x;
}
static inline VF fmax_lanes(VF x, VF y) {
  for (int l = 0; l < W; l++) x[l] = x[l] > y[l] ? x[l] : y[l];
  return x;
}
static inline VF vround(VF x) {
  for (int l = 0; l < W; l++) x[l] = nearbyintf(x[l]);
  return x;
}
struct VD {
  double v[W];
};
template <typename F>
static inline VD each(F f) {
  VD r;
  for (int l = 0; l < W; l++) r.v[l] = f(l);
  return r;
}
static inline VD wide(VF x) { return each([&](int l) { return (double)x[l]; }); }
static inline VF narrow(VD x) {
  VF r;
  for (int l = 0; l < W; l++) r[l] = (float)x.v[l];
  return r;
}
static inline VD dset(double x) { return each([&](int) { return x; }); }
static inline VD dadd(VD x, VD y) { return each([&](int l) { return x.v[l] + y.v[l]; }); }
static inline VD dsub(VD x, VD y) { return each([&](int l) { return x.v[l] - y.v[l]; }); }
static inline VD dmul(VD x, VD y) { return each([&](int l) { return x.v[l] * y.v[l]; }); }
static inline VD ddiv(VD x, VD y) { return each([&](int l) { return x.v[l] / y.v[l]; }); }
static inline VD dfma(VD x, VD y, VD z) { return dadd(dmul(x, y), z); }
static inline VD dsqrt(VD x) { return each([&](int l) { return sqrt(x.v[l]); }); }
static inline VD dmin(VD x, VD y) { return each([&](int l) { return x.v[l] < y.v[l] ? x.v[l] : y.v[l]; }); }
static inline VD dclamp(VD x) { return each([&](int l) { return x.v[l] < 0 ? 0.0 : x.v[l]; }); }
static inline VI dless(VD x, VD y) {
  VI r;
  for (int l = 0; l < W; l++) r[l] = x.v[l] < y.v[l] ? -1 : 0;
  return r;
}

static inline void load_transposed(const float *const *rows, int group, VF *v) {
  for (int l = 0; l < W; l++) {
    for (int k = 0; k < group; k++) v[k][l] = rows[l][k];
  }
}

static inline int8_t code_of(float x, float radius, float step, float qmax) {
  if (!(step == step && x == x)) return 0;  // a NaN has no code
  x = x > radius ? radius : x;
  x = x < -radius ? -radius : x;
  float q = nearbyintf(x / step);
  q = q > qmax ? qmax : q;
  q = q < -qmax - 1 ? -qmax - 1 : q;
  return (int8_t)q;
}

static int32_t encode_group(const float *x, int n, float radius, float step, int bits,
                            int8_t *codes) {
  const float qmax = (float)((1 << (bits - 1)) - 1);
  int32_t total = 0;
  for (int i = 0; i < n; i++) total += codes[i] = code_of(x[i], radius, step, qmax);
  return total;
}

static inline bool encode_plain(const cod::GroupBlock &, int, int, int, int, cod::GroupResult &) {
  return false;  // no faster way here
}

#include "epilogue.inl"
#include "project.inl"

namespace {

void encode_each(const float *x, int n, const float *radius, const float *step, int bits,
                 int8_t *codes) {
  const float qmax = (float)((1 << (bits - 1)) - 1);
  for (int i = 0; i < n; i++) codes[i] = code_of(x[i], radius[i], step[i], qmax);
}

constexpr int MR = 4, NR = 8;

void tile(const int8_t *const *x, const float *const *s, const int32_t *const *c, const uint8_t *w,
          const float *ws, int64_t taps, int64_t groups, int group, int step_stride, int,
          bool, const cod::Epilogue &out) {
  float *acc = out.acc;
  for (int i = 0; i < MR * NR; i++) acc[i] = 0.0f;
  for (int64_t t = 0; t < taps; t++, x += MR, s += MR, c += MR)
    for (int64_t g = 0; g < groups; g++, w += (int64_t)group * NR) {
      for (int r = 0; r < MR; r++) {
        int32_t sum[NR];
        for (int j = 0; j < NR; j++) sum[j] = -COD_WEIGHT_OFFSET * c[r][g];
        const int8_t *row = x[r] + g * group;
        for (int k = 0; k < group; k++)
          for (int j = 0; j < NR; j++) sum[j] += row[k] * w[(k / 4) * 4 * NR + 4 * j + k % 4];
        const float sx = s[r][g * step_stride];
        for (int j = 0; j < NR; j++)
          acc[r * NR + j] += (float)sum[j] * sx * (ws ? ws[j] : 1.0f);
      }
      if (ws) ws += NR;
    }
  store_tile(out, NR);
}

void unpack(const uint8_t *packed, int64_t n, uint8_t *bytes) {
  constexpr int block = 2 * NR;
  for (int64_t i = 0; i < n; i += block)
    for (int j = 0; j < block; j++) {
      bytes[2 * i + j] = packed[i + j] & 15;
      bytes[2 * i + block + j] = packed[i + j] >> 4;
    }
}

bool runs_here() { return true; }

}  // namespace

static inline VF codes_as_floats(const int8_t *codes) {
  VF v;
  for (int l = 0; l < W; l++) v[l] = (float)codes[l];
  return v;
}

#include "plain.inl"

#include "depthwise.inl"
#include "pointwise.inl"
#include "weigh.inl"

extern const cod::Kernels kGeneric;
const cod::Kernels kGeneric = {"generic", runs_here, kLanes,  quantize_block, encode_group, encode_each,
                               gelu,      MR,        NR, tile,          unpack, activate,
                               dequantize, depthwise, multiply, blend, magnitudes, widest, weigh, widest_pixels, weigh_pixels,
                               transform, dequantize_each};
