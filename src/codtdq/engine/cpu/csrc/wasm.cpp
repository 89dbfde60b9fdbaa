#include "wasm.h"

#include "table.h"

namespace cod {

extern const Kernels kWasm;
constexpr Kernels kWasm = table_of<Wasm>();

}  // namespace cod
