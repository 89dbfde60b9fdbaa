// What an instruction set provides for the float instructions of programs; one per set, as the
// member `floats` of its table (kernels.h).
#pragma once
#include <cstdint>

namespace cod {

enum UnaryOp : int32_t {
  kCopyOp = 0,
  kRelu = 1,
  kGelu = 2,
  kGeluTanh = 3,
  kSigmoid = 4,
  kSilu = 5,
  kTanh = 6,
  kHardswish = 7,
  kHardsigmoid = 8,
  kExp = 9,
  kSqrt = 10,
  kRsqrt = 11,
  kAbs = 12,
  kNegate = 13,
  kReciprocal = 14,
  kClamp = 15,  // between a and b
  kCos = 16,
  kSin = 17,
  kLeakyRelu = 18,  // slope a
  kFloor = 19,
  kSquare = 20,
  kUnaryOps = 21
};

enum BinaryOp : int32_t {
  kAdd = 0,
  kSubtract = 1,
  kMultiply = 2,
  kDivide = 3,
  kMaximum = 4,
  kMinimum = 5,
  kBinaryOps = 6
};

// One tile of a float product: y[r, j] = sum over taps and k of x[t * rows + r][k] w[t, k, j], k
// ascending and fused, then bias[j] is added. w: [taps * depth][vectors * W], on cache lines.
struct FloatTile {
  const float *const *x;
  const float *w;
  int64_t taps, depth;
  float *y;
  int64_t stride;
  const float *bias;           // [columns] or NULL
  int rows, columns, vectors;  // rows, columns: those that exist
};

struct FloatKernels {
  void (*unary)(int op, float a, float b, const float *x, int64_t n, float *y);
  // strides of x and z: 0 or 1
  void (*binary)(int op, const float *x, int64_t x_stride, const float *z, int64_t z_stride,
                 int64_t n, float *y);
  // sums over 16 interleaved parts, whatever the width of vectors
  float (*sum)(const float *x, int64_t n);
  float (*squares)(const float *x, int64_t n, float middle);  // of x - middle
  float (*largest)(const float *x, int64_t n);                // NaN if one is
  // y = (x - middle) * scale * weight + bias; weight and bias may be NULL
  void (*normalize)(const float *x, int64_t n, float middle, float scale, const float *weight,
                    const float *bias, float *y);
  void (*softmax)(const float *x, int64_t n, float *y);
  // y = x + (z - x) * share
  void (*mix)(const float *x, const float *z, float share, int64_t n, float *y);
  int rows, width, vectors;  // tile: rows x (width * vectors) outputs
  void (*tile)(const FloatTile &tile);
};

}  // namespace cod
