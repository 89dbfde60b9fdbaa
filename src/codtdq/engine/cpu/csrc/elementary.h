// Elementary functions of vectors. Fused multiplications everywhere and one order of operations:
// every instruction set gives the same bits.
#pragma once
#include "lanes.h"

namespace cod {
namespace {

constexpr float kLog2E = 1.44269504f;
// ln 2 in two parts, the first with so few digits that its whole multiples are exact
constexpr float kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;
constexpr float kLeastExponent = -87.3365448f;  // of 2^-126
constexpr float kMostExponent = 88.3762589f;    // of 2^127.5
// exp(r) = 1 + r + r^2 P(r) on |r| <= ln 2 / 2. Least squares, reweighted until the error was level
// at 1.05e-7.
constexpr float kExpP[] = {4.999923030e-01f, 1.666711539e-01f, 4.189033249e-02f, 8.312501552e-03f};

template <class Isa>
struct Elementary {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;

  // Of x between kLeastExponent and kMostExponent, or NaN; relative error below 2e-7.
  COD_INLINE Floats exp_inside(Floats x) {
    const Floats magic = Isa::all(kMagic), shifted = fused<Isa>(x, Isa::all(kLog2E), magic);
    const Floats n = shifted - magic;
    Floats r = fused<Isa>(n, Isa::all(-kLn2High), x);
    r = fused<Isa>(n, Isa::all(-kLn2Low), r);
    Floats p = Isa::all(kExpP[3]);
    p = fused<Isa>(p, r, Isa::all(kExpP[2]));
    p = fused<Isa>(p, r, Isa::all(kExpP[1]));
    p = fused<Isa>(p, r, Isa::all(kExpP[0]));
    p = fused<Isa>(p, r, Isa::all(1.0f));
    p = fused<Isa>(p, r, Isa::all(1.0f));
    // the low bits of `shifted` are n; a product, unlike a sum of exponents, keeps a NaN
    return p * Isa::as_floats((Isa::as_ints(shifted) << 23) + 0x3f800000);
  }

  // Of x at most 0: 2^-126 below its logarithm.
  COD_INLINE Floats exp_of_negative(Floats x) {
    return exp_inside(Isa::max(Isa::all(kLeastExponent), x));
  }

  COD_INLINE Floats exp(Floats x) {
    return exp_inside(Isa::min(Isa::all(kMostExponent), Isa::max(Isa::all(kLeastExponent), x)));
  }

  // 1 / (1 + exp(-x)), within 4e-7 of it in relation.
  COD_INLINE Floats sigmoid(Floats x) { return 1.0f / (exp(-x) + 1.0f); }

  // Within 3e-7 |tanh x|: (1 - e) / (1 + e) with e = exp(-2 |x|), and an odd polynomial near 0.
  COD_INLINE Floats tanh(Floats x) {
    const Ints sign = Isa::as_ints(x) & ~kMagnitude;
    const Floats size = Isa::as_floats(Isa::magnitude(x));
    const Floats e = exp_of_negative(size * -2.0f), far = (1.0f - e) / (e + 1.0f);
    const Floats z = x * x;
    Floats p = Isa::all(-8.863235530e-03f);
    p = fused<Isa>(p, z, Isa::all(2.186948852e-02f));
    p = fused<Isa>(p, z, Isa::all(-5.396825397e-02f));
    p = fused<Isa>(p, z, Isa::all(1.333333333e-01f));
    p = fused<Isa>(p, z, Isa::all(-3.333333333e-01f));
    const Floats near = fused<Isa>(x * z, p, x);
    return Isa::choose(size < 0.3f, near, Isa::as_floats(Isa::as_ints(far) | sign));
  }
};

}  // namespace
}  // namespace cod
