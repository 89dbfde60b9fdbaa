// The AVX-VNNI set in the encoding of AVX-512, for processors that have only that.
#define COD_AVXVNNI_EVEX
#include "avxvnni.cpp"
