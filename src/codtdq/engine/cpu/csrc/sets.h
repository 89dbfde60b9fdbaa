// Instruction sets, best first, as COD_SET(its table): who includes this defines COD_SET.
#ifdef COD_HAVE_AVX512
COD_SET(kAvx512)
#endif
#ifdef COD_HAVE_AVX2
COD_SET(kAvx2)
#endif
#ifdef COD_HAVE_NEON
COD_SET(kNeon)
#endif
COD_SET(kGeneric)
#undef COD_SET
