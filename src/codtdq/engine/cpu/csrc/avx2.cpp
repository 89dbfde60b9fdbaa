#include "avx2.h"

#include "table.h"

namespace cod {

extern const Kernels kAvx2;
constexpr Kernels kAvx2 = table_of<Avx2>();

}  // namespace cod
