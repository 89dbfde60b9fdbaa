// Instruction sets, best first, as COD_SET(its table): who includes this defines COD_SET.
#ifdef COD_HAVE_AMX
COD_SET(kAmx)
#endif
#ifdef COD_HAVE_AMX_EMULATED
COD_SET(kAmxEmulated)
#endif
#ifdef COD_HAVE_AVX512
COD_SET(kAvx512)
#endif
#ifdef COD_HAVE_AVXVNNI
COD_SET(kAvxVnni)
#endif
#ifdef COD_HAVE_AVXVNNI_EVEX
COD_SET(kAvxVnniEvex)
#endif
#ifdef COD_HAVE_AVX2
COD_SET(kAvx2)
#endif
#ifdef COD_HAVE_I8MM
COD_SET(kI8mm)
#endif
#ifdef COD_HAVE_NEON
COD_SET(kNeon)
#endif
#ifdef COD_HAVE_WASM
COD_SET(kWasm)
#endif
COD_SET(kGeneric)
#undef COD_SET
