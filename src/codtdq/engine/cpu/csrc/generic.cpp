// Plain C++ for any processor: the definition that the others are tested against.
#include "table.h"

namespace cod {
namespace {

struct Generic : Lanes<4> {
  static constexpr const char *kName = "generic";
  static bool runs_here() { return true; }
};

}  // namespace

extern const Kernels kGeneric;
constexpr Kernels kGeneric = table_of<Generic>();

}  // namespace cod
