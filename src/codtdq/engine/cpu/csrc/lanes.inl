// Small operations on vectors of W lanes that need no intrinsics.

#define ALWAYS_INLINE static inline __attribute__((always_inline))

namespace {

constexpr int kInf = 0x7f800000;

static inline VF as_float(VI x) {
  VF y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}

static inline VI as_int(VF x) {
  VI y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}

static inline VF choose(VI mask, VF a, VF b) { return mask ? a : b; }
static inline VI choose(VI mask, VI a, VI b) { return mask ? a : b; }

static inline VF load_lanes(const float *x) {
  VF v;
  __builtin_memcpy(&v, x, sizeof v);
  return v;
}

// x[at[0]], x[at[1]], ...
static inline VF gather_lanes(const float *x, const int32_t *at) {
#if defined(__AVX512F__)
  return (VF)_mm512_i32gather_ps(_mm512_loadu_si512(at), x, 4);
#elif defined(__AVX2__)
  return (VF)_mm256_i32gather_ps(x, _mm256_loadu_si256((const __m256i *)at), 4);
#else
  VF v;
  for (int l = 0; l < W; l++) v[l] = x[at[l]];
  return v;
#endif
}

template <typename V, typename T>
static inline void store_lanes(V v, T *x) {
  static_assert(sizeof(T) * W == sizeof(V), "one element per lane");
  __builtin_memcpy(x, &v, sizeof v);
}

static inline VF at_least(VF x, float floor) { return choose(x < floor, VF{} + floor, x); }

}  // namespace
