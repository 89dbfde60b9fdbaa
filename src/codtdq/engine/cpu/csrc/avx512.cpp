#include "avx512.h"

#include "table.h"

namespace cod {

extern const Kernels kAvx512;
constexpr Kernels kAvx512 = table_of<Avx512>();

}  // namespace cod
