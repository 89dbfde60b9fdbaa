// The AMX set with its tile registers in software: everything but the instructions themselves.
#define COD_AMX_EMULATED
#include "amx.cpp"
