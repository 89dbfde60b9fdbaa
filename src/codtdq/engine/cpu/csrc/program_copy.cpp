// copy: y = x, between any two strided views of one shape and type.
#include <cstring>

#include "kernels.h"
#include "program_loops.h"

namespace cod {
namespace {

struct Copy : Loops {
  int64_t size = 4;
  int turned = -1;  // an outer axis along which x is without gaps, while y is along the inner one
};

bool check(Instruction &one, const Build &) {
  if (one.operand_count != 2 || !one.has(1) || one.operands[0].type != one.operands[1].type)
    return false;
  auto found = std::make_unique<Copy>();
  const Operand *all[] = {&one.operands[0], &one.operands[1]};
  if (!found->set(all, 2)) return false;
  found->size = size_of(one.operands[0].type);
  if (is_float(one.operands[0]) && found->step(0) == 1 && found->step(1) != 1)
    for (int d = 0; d + 1 < found->axes; d++)
      if (found->stride[1][d] == 1) found->turned = d;
  one.prepared = std::move(found);
  return true;
}

template <typename T>
void run_as(const Copy &loops, T *y, const T *x, int threads) {
  parallel_for(loops.outer, loops.grain(), threads, [&](int64_t begin, int64_t end) {
    const int64_t n = loops.inner, to = loops.step(0), from = loops.step(1);
    loops.each(begin, end, [&](const int64_t *at) {
      T *own = y + at[0];
      const T *other = x + at[1];
      if (to == 1 && from == 1)
        std::memcpy(own, other, (size_t)n * sizeof(T));
      else
        for (int64_t i = 0; i < n; i++) own[i * to] = other[i * from];
    });
  });
}

// A matrix at a time: rows of x become columns of y.
void run_turned(const Copy &loops, float *y, const float *x, int threads) {
  Copy rest = loops;  // without the turned axis, which the innermost loop takes
  const int d = loops.turned;
  const int64_t columns = loops.shape[d], to = loops.stride[0][d];
  rest.shape[d] = 1;
  rest.outer /= columns;
  constexpr int64_t kPiece = 64;
  const int64_t pieces = (columns + kPiece - 1) / kPiece;
  parallel_for(rest.outer * pieces, 1 + (1 << 15) / (loops.inner * kPiece), threads,
               [&](int64_t begin, int64_t end) {
                 for (int64_t item = begin; item < end; item++) {
                   const int64_t first = item % pieces * kPiece;
                   const int64_t count = std::min(kPiece, columns - first);
                   rest.each(item / pieces, item / pieces + 1, [&](const int64_t *at) {
                     kernels().turn(x + at[1] + first, loops.inner, loops.step(1), count,
                                    y + at[0] + first * to, to);
                   });
                 }
               });
}

int32_t run(const Instruction &one, const Run &run) {
  const auto &loops = static_cast<const Copy &>(*one.prepared);
  if (loops.turned >= 0)
    run_turned(loops, run.write<float>(one.operands[0]), run.read<float>(one.operands[1]),
               run.threads);
  else if (loops.size == 4)
    run_as(loops, run.write<float>(one.operands[0]), run.read<float>(one.operands[1]), run.threads);
  else if (loops.size == 8)
    run_as(loops, run.write<double>(one.operands[0]), run.read<double>(one.operands[1]),
           run.threads);
  else
    run_as(loops, run.write<uint8_t>(one.operands[0]), run.read<uint8_t>(one.operands[1]),
           run.threads);
  return COD_OK;
}

}  // namespace

extern const Kind kKind_copy;
const Kind kKind_copy{"copy", 1, check, run};

}  // namespace cod
