// Which instruction set runs, and the constants that both languages must agree on.
#include <atomic>
#include <climits>
#include <cmath>
#include <cstring>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "kernels.h"

namespace cod {

#define COD_SET(table) extern const Kernels table;
#include "sets.h"

static const Kernels *const kSets[] = {
#define COD_SET(table) &table,
#include "sets.h"
};

static std::atomic<const Kernels *> selected{nullptr};

const Kernels &kernels() {
  const Kernels *found = selected.load(std::memory_order_acquire);
  if (found) return *found;
  for (const Kernels *one : kSets)
    if (one->runs_here()) {
      selected.store(one, std::memory_order_release);
      return *one;
    }
  return kGeneric;
}

}  // namespace cod

extern "C" {

int32_t cod_abi_version(void) { return COD_ABI_VERSION; }

double cod_constant(const char *name) {
  const struct {
    const char *name;
    double value;
  } table[] = {
      {"EPS", (double)1e-8},
      {"STD_EPS", COD_STD_EPS},
      {"TIE_MARGIN", COD_TIE_MARGIN},
      {"WEIGHT_OFFSET", COD_WEIGHT_OFFSET},
      {"MAX_GROUP", COD_MAX_GROUP},
      {"MAX_TRIALS", COD_MAX_TRIALS},
      {"LARGEST_CARRIER", COD_LARGEST_CARRIER},
      {"LARGEST_MULTIPLIER", COD_LARGEST_MULTIPLIER},
      {"LONGEST_SUM", COD_LONGEST_SUM},
      {"LEAST_STEP", COD_LEAST_STEP},
      {"ACTIVE_C1", COD_ACTIVE_C1},
      {"ACTIVE_C2", COD_ACTIVE_C2},
      {"ACTIVE_GUARDED", COD_ACTIVE_GUARDED},
      {"INFEASIBLE_C1", COD_INFEASIBLE_C1},
      {"INFEASIBLE_C2", COD_INFEASIBLE_C2},
      {"QUANT_SPEC_BYTES", sizeof(cod_quant_spec)},
      {"ROWS_BYTES", sizeof(cod_rows)},
      {"QUANTIZED_BYTES", sizeof(cod_quantized)},
      {"OUTPUT_BYTES", sizeof(cod_output)},
      {"GEOMETRY_BYTES", sizeof(cod_geometry)},
      {"DEFORM_BYTES", sizeof(cod_deform)},
      {"CARRIER_BYTES", sizeof(cod_carrier)},
      {"CARRIED_BYTES", sizeof(cod_carried)},
      {"CARRY_SPEC_BYTES", sizeof(cod_carry_spec)},
      {"CARRIER_WEIGHT_BYTES", sizeof(cod_carrier_weight)},
  };
  for (const auto &entry : table)
    if (!std::strcmp(entry.name, name)) return entry.value;
  return std::nan("");
}

const char *cod_isa(void) { return cod::kernels().name; }

const char *cod_available(void) {
  static const std::string names = [] {
    std::string all;
    for (const cod::Kernels *one : cod::kSets)
      if (one->runs_here()) all += (all.empty() ? "" : " ") + std::string(one->name);
    return all;
  }();
  return names.c_str();
}

int32_t cod_select(const char *isa) {
  for (const cod::Kernels *one : cod::kSets)
    if (!std::strcmp(one->name, isa) && one->runs_here()) {
      cod::selected.store(one, std::memory_order_release);
      return COD_OK;
    }
  return COD_NO_KERNEL;
}

const char *cod_refusal(const char *isa) {
  for (const cod::Kernels *one : cod::kSets)
    if (!std::strcmp(one->name, isa)) {
      if (one->runs_here()) return "";
      const char *reason = one->refusal ? one->refusal() : nullptr;
      return reason ? reason : "this processor does not have its instructions";
    }
  return "the library was built without it";
}

int32_t cod_keep_memory(int64_t bytes) {
#if defined(__GLIBC__)
  const int most = bytes < INT_MAX ? (int)bytes : INT_MAX;
  return mallopt(M_MMAP_THRESHOLD, most) && mallopt(M_TRIM_THRESHOLD, most) ? COD_OK
                                                                            : COD_BAD_ARGUMENT;
#else
  (void)bytes;
  return COD_NO_KERNEL;
#endif
}

}  // extern "C"
