// Takes the calls by which libFuzzer is told of every comparison, and tells it nothing.
#include <cstdint>

#define COD_UNTRACED(name, type) \
  extern "C" void __wrap___sanitizer_cov_trace_##name(type, type) {}

COD_UNTRACED(cmp1, uint8_t)
COD_UNTRACED(cmp2, uint16_t)
COD_UNTRACED(cmp4, uint32_t)
COD_UNTRACED(cmp8, uint64_t)
COD_UNTRACED(const_cmp1, uint8_t)
COD_UNTRACED(const_cmp2, uint16_t)
COD_UNTRACED(const_cmp4, uint32_t)
COD_UNTRACED(const_cmp8, uint64_t)
