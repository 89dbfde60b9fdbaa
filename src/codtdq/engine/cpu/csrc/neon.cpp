#include "neon.h"

#include "table.h"

namespace cod {

extern const Kernels kNeon;
constexpr Kernels kNeon = table_of<Neon>();

}  // namespace cod
