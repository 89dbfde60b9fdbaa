// Plain C++ for any processor: the definition that the others are tested against.
#include "table.h"

namespace cod {
namespace {

struct Generic : Lanes<4> {
  static constexpr const char *kName = "generic";
  static bool runs_here() { return true; }
  static constexpr int kRows = 4;
  static constexpr bool kStepFirst = true;

  template <int GROUP>
  COD_INLINE void dot(const int8_t *const *x, int64_t at, const uint8_t *w, int group, bool,
                      Ints (&d)[kRows][2]) {
    constexpr int kColumns = 2 * kWidth;
    for (int r = 0; r < kRows; r++) {
      int32_t sum[kColumns] = {};
      for (int k = 0; k < group; k++)
        for (int j = 0; j < kColumns; j++)
          sum[j] += x[r][at + k] * w[(k / 4) * 4 * kColumns + 4 * j + k % 4];
      for (int j = 0; j < kColumns; j++) d[r][j / kWidth][j % kWidth] += sum[j];
    }
  }
};

}  // namespace

extern const Kernels kGeneric;
constexpr Kernels kGeneric = table_of<Generic>();

}  // namespace cod
