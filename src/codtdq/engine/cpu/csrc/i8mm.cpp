// ARM with matrix products of int8: what NEON has, and smmla for products of carriers, 8 x 8 tiles.
// A register holds eight values of depth of two rows, or of two columns.
#include "neon.h"
#include "table.h"

namespace cod {
namespace {

struct I8mm : Neon {
  static constexpr const char *kName = "neon-i8mm";
  static bool runs_here() {
#if defined(__linux__)
    return Neon::runs_here() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#else
    return false;  // no way to ask is known here
#endif
  }

  static constexpr int kCarrierRows = 8, kCarrierUnit = 8;
  static constexpr bool kCarrierPacks = true;
  static int64_t carrier_packed(int64_t taps, int64_t depth) { return kCarrierRows * taps * depth; }
  static void carrier_begin() {}
  static void carrier_end() {}

  // [taps][depth / 8][8 rows][8]
  static void carrier_pack(const int8_t *const *x, int64_t taps, int64_t depth, int8_t *to) {
    for (int64_t t = 0; t < taps; t++, x += kCarrierRows)
      for (int64_t k = 0; k < depth; k += 8)
        for (int r = 0; r < kCarrierRows; r++, to += 8) __builtin_memcpy(to, x[r] + k, 8);
  }

  static void carrier_product(const CarrierTile &in, int32_t *sums) {
    int32x4_t d[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) d[i][j] = vdupq_n_s32(0);
    const int8_t *x = in.packed, *w = (const int8_t *)in.w;
    for (int64_t k = 0; k < in.taps * in.depth; k += 8, x += 64, w += 64) {
      int8x16_t columns[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) columns[j] = vld1q_s8(w + 16 * j);
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        const int8x16_t rows = vld1q_s8(x + 16 * i);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) d[i][j] = vmmlaq_s32(d[i][j], rows, columns[j]);
      }
    }
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 4; j++) {
        vst1_s32(sums + 2 * i * 8 + 2 * j, vget_low_s32(d[i][j]));
        vst1_s32(sums + (2 * i + 1) * 8 + 2 * j, vget_high_s32(d[i][j]));
      }
  }
};

}  // namespace

extern const Kernels kI8mm;
constexpr Kernels kI8mm = table_of<I8mm>();

}  // namespace cod
