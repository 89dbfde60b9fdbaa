// Functions of rows, for Python.
#include "kernels.h"

extern "C" int32_t cod_elementary(const float *x, int64_t n, int32_t function, float *y) {
  if (!x || !y || n < 0 || function < COD_EXP || function > COD_GELU) return COD_BAD_ARGUMENT;
  cod::kernels().elementary(x, n, function, y);
  return COD_OK;
}
