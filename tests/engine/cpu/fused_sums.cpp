// Prints a hash over x * y + z, rounded once, of many numbers that are hard to round: ties with a
// little beside them, sums that are hardly normal or less, anything. In WebAssembly by the kernels'
// own way, elsewhere by the C library.
#include <cstdint>
#include <cstdio>
#include <cstring>

#ifdef __wasm__
#include "wasm.h"
#endif

namespace {

uint64_t state = 1;

uint32_t random_bits() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 32);
}

float number(int kind) {
  const uint32_t r = random_bits(), sign = r & 0x80000000u, m = random_bits();
  uint32_t bits = r;                                                              // anything
  if (kind == 1) bits = sign | (120 + r % 16) << 23 | (m & 7) << 20 | (m >> 30);  // few bits
  if (kind == 2) bits = sign | r % 24 << 23 | (m & 0x7fffff);                     // next to zero
  if (kind == 3) bits = sign | (60 + r % 20) << 23 | (m & 0x700001);
  if (kind == 4) bits = sign | (100 + r % 40) << 23 | (m & 0x7fffff);
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

void fused(const float *x, const float *y, const float *z, float *to) {
#ifdef __wasm__
  using Set = cod::Wasm;
  Set::store(Set::fused_lanes(Set::load(x), Set::load(y), Set::load(z)), to);
#else
  for (int l = 0; l < 4; l++) to[l] = __builtin_fmaf(x[l], y[l], z[l]);
#endif
}

}  // namespace

int main() {
  uint64_t hash = 1469598103934665603u;
  for (int kinds = 0; kinds < 125; kinds++)
    for (int i = 0; i < 4000; i++) {
      float x[4], y[4], z[4], sum[4];
      for (int l = 0; l < 4; l++) {
        x[l] = number(kinds % 5), y[l] = number(kinds / 5 % 5), z[l] = number(kinds / 25);
        if (i % 3 == 0) z[l] = x[l] * y[l] * (i % 2 ? 0x1p24f : -0x1p24f);  // next to a tie
      }
      fused(x, y, z, sum);
      for (int l = 0; l < 4; l++) {
        uint32_t bits;
        std::memcpy(&bits, &sum[l], sizeof bits);
        if (sum[l] != sum[l]) bits = 0x7fc00000;  // a NaN is a NaN
        hash = (hash ^ bits) * 1099511628211u;
      }
    }
  std::printf("%016llx\n", (unsigned long long)hash);
}
