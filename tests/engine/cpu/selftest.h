// What the parts of the self-test share: reports, numbers from a counter, difficult values.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "codtdq_native.h"

extern int passed, failed;

inline void report(const std::string &what, const std::string &trouble) {
  (trouble.empty() ? passed : failed)++;
  std::printf("%s %s%s%s\n", trouble.empty() ? "ok  " : "FAIL", what.c_str(),
              trouble.empty() ? "" : ": ", trouble.c_str());
  std::fflush(stdout);
}

template <typename... T>
std::string text(const T &...parts) {
  std::ostringstream out;
  out.precision(9);
  (out << ... << parts);
  return out.str();
}

struct Random {
  uint64_t state;
  uint32_t next() {  // splitmix64
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
  }
  int below(int n) { return (int)(next() % (uint32_t)n); }
  float uniform() { return (float)(next() >> 8) * (1.0f / 16777216.0f); }
  float bell() { return uniform() + uniform() + uniform() + uniform() - 2.0f; }
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows of every kind that a quantizer meets; after the first twelve, ordinary ones.
inline std::vector<float> difficult(int64_t rows, int64_t channels, uint64_t seed) {
  Random random{seed};
  std::vector<float> x((size_t)(rows * channels));
  for (int64_t r = 0; r < rows; r++) {
    float *row = &x[r * channels];
    const float size = 3.0f * random.uniform();
    for (int64_t c = 0; c < channels; c++) row[c] = size * random.bell();
    for (int64_t c = 0; c < channels; c++) {
      if (r == 0) row[c] = 0.0f;
      if (r == 1) row[c] = 1.5f;
      if (r == 2 && c % 3 == 0) row[c] = c % 2 ? 0.0f : -0.0f;
      if (r == 3) row[c] = std::max(row[c], 0.0f);
      if (r == 4) row[c] *= 1e-9f;
      if (r == 5 && c == 0) row[c] = 100.0f;
      if (r == 6) row[c] = std::nearbyint(row[c] * 4.0f) / 4.0f;
      if (r == 7) row[c] *= 1e-40f;
      if (r == 8) row[c] += 1000.0f;
      if (r == 9)
        row[c] = c ? 0.5f * (float)(c % 15 - 7) : 7.0f;  // q_max 7: step 1, half of them ties
      if (r == 10 && c == channels / 2) row[c] = kNan;
      if (r == 11 && c == channels - 1) row[c] = -kInfinity;
    }
  }
  return x;
}

inline bool same(float a, float b) { return a == b || (a != a && b != b); }

template <typename T>
std::string differs(const char *name, const std::vector<T> &a, const std::vector<T> &b) {
  for (size_t i = 0; i < a.size(); i++) {
    const bool equal =
        std::is_same<T, float>::value ? same((float)a[i], (float)b[i]) : a[i] == b[i];
    if (!equal) return text(name, "[", i, "] is ", +a[i], ", generic has ", +b[i]);
  }
  return "";
}

inline cod_geometry convolution(int batch, int h, int w, int kh, int kw, int stride, int pad,
                                int dilation) {
  auto size = [&](int n, int k) { return (n + 2 * pad - dilation * (k - 1) - 1) / stride + 1; };
  return {batch,  h,      w,   size(h, kh), size(w, kw), kh,      kw,
          stride, stride, pad, pad,         dilation,    dilation};
}

// Carriers: encoders and products.
void check_carriers(const std::string &set);
