// unary: y = f(x); binary: y = f(x, z). Views of one shape, broadcast by strides of 0.
// unary: ints [op], floats [a, b]; binary: ints [op].
#include <cstring>
#include <new>

#include "aligned.h"
#include "kernels.h"
#include "program_loops.h"

namespace cod {
namespace {

constexpr int64_t kPiece = 1024;  // values of an input that are gathered at once

bool check_views(Instruction &one, int count) {
  if (one.operand_count != count) return false;
  auto found = std::make_unique<Loops>();
  const Operand *all[kMostViews];
  for (int i = 0; i < count; i++) {
    if (!one.has(i) || !is_float(one.operands[i])) return false;
    all[i] = &one.operands[i];
  }
  if (!found->set(all, count)) return false;
  one.prepared = std::move(found);
  return true;
}

bool check_unary(Instruction &one, const Build &) {
  return one.int_count == 1 && one.ints[0] >= 0 && one.ints[0] < kUnaryOps &&
         one.float_count == 2 && check_views(one, 2);
}
bool check_binary(Instruction &one, const Build &) {
  return one.int_count == 1 && one.ints[0] >= 0 && one.ints[0] < kBinaryOps && check_views(one, 3);
}

// n values at a stride as values side by side.
const float *gathered(const float *x, int64_t stride, int64_t n, float *room) {
  if (stride <= 1) return x;
  if (stride == 2)  // pairs: the compiler has vectors for them
    for (int64_t i = 0; i < n; i++) room[i] = x[2 * i];
  else
    for (int64_t i = 0; i < n; i++) room[i] = x[i * stride];
  return room;
}

// Calls body(first value, how many, where from: views[i], where to) in pieces that fit.
template <typename F>
void in_pieces(const Loops &loops, const Run &run, float *y, const F &body) {
  // a single long line is cut for threads
  const int64_t piece = loops.outer >= run.threads ? loops.inner : 1 << 14;
  const int64_t cuts = (loops.inner + piece - 1) / piece;
  const int64_t grain = std::max<int64_t>((1 << 14) / std::min(piece, loops.inner), 1);
  parallel_for(loops.outer * cuts, grain, run.threads, [&](int64_t begin, int64_t end) {
    float result[kPiece];
    const int64_t to = loops.step(0);
    const auto line = [&](const int64_t *at, int64_t first, int64_t stop) {
      for (int64_t i = first; i < stop; i += kPiece) {
        const int64_t n = std::min(kPiece, stop - i);
        float *own = y + at[0] + i * to;
        body(at, i, n, to == 1 ? own : result);
        if (to != 1)
          for (int64_t j = 0; j < n; j++) own[j * to] = result[j];
      }
    };
    if (cuts == 1)  // walking takes less time than finding one line after the other
      return loops.each(begin, end, [&](const int64_t *at) { line(at, 0, loops.inner); });
    for (int64_t item = begin; item < end; item++)
      loops.each(item / cuts, item / cuts + 1, [&](const int64_t *at) {
        const int64_t first = item % cuts * piece;
        line(at, first, std::min(first + piece, loops.inner));
      });
  });
}

int32_t run_unary(const Instruction &one, const Run &run) {
  const auto &loops = static_cast<const Loops &>(*one.prepared);
  const float *x = run.read<float>(one.operands[1]);
  const int64_t step = loops.step(1);
  const int op = (int)one.ints[0];
  const float a = (float)one.floats[0], b = (float)one.floats[1];
  in_pieces(loops, run, run.write<float>(one.operands[0]),
            [&](const int64_t *at, int64_t i, int64_t n, float *y) {
              float room[kPiece];
              const float *from = x + at[1] + i * step;
              if (step == 0)
                std::fill_n(room, n, *from), from = room;
              else
                from = gathered(from, step, n, room);
              kernels().floats.unary(op, a, b, from, n, y);
            });
  return COD_OK;
}

int32_t run_binary(const Instruction &one, const Run &run) {
  const auto &loops = static_cast<const Loops &>(*one.prepared);
  const float *x = run.read<float>(one.operands[1]), *z = run.read<float>(one.operands[2]);
  const int64_t xs = loops.step(1), zs = loops.step(2);
  const int op = (int)one.ints[0];
  in_pieces(loops, run, run.write<float>(one.operands[0]),
            [&](const int64_t *at, int64_t i, int64_t n, float *y) {
              float room[2][kPiece];
              kernels().floats.binary(op, gathered(x + at[1] + i * xs, xs, n, room[0]), xs != 0,
                                      gathered(z + at[2] + i * zs, zs, n, room[1]), zs != 0, n, y);
            });
  return COD_OK;
}

}  // namespace

extern const Kind kKind_unary, kKind_binary;
const Kind kKind_unary{"unary", 1, check_unary, run_unary};
const Kind kKind_binary{"binary", 1, check_binary, run_binary};

}  // namespace cod
