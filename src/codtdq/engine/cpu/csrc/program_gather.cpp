// gather: y[i, j, ...] = x[table_0[i], table_1[j], ...]: rolls, padding and constant indices.
// y, x, then for each axis a table int32 [length in y], or none where both agree; a table's -1
// reads `fill`. floats [fill].
#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "program.h"

namespace cod {
namespace {

struct Gather : Prepared {
  // where index i of an axis of y lies in x, in elements; -1: nowhere
  std::vector<int64_t> from[COD_MAX_AXES];
  bool straight = false;  // the last axis of both lies without gaps and in order
  int64_t outer = 1;
};

bool check(Instruction &one, const Build &build) {
  if (one.operand_count < 2 || !one.has(1) || one.float_count != 1) return false;
  const Operand &y = one.operands[0], &x = one.operands[1];
  if (!is_float(x) || !is_float(y) || x.ndim != y.ndim || x.ndim < 1 ||
      one.operand_count != 2 + x.ndim)
    return false;
  auto found = std::make_unique<Gather>();
  for (int d = 0; d < x.ndim; d++) {
    const int64_t n = y.shape[d];
    if (n > (int64_t)1 << 31) return false;
    const int32_t *table = nullptr;
    if (one.has(2 + d)) {
      const Operand &given = one.operands[2 + d];
      if (given.space != COD_SPACE_CONSTANT || given.type != COD_TYPE_I32 || given.ndim != 1 ||
          given.shape[0] != n || (n > 1 && given.stride[0] != 1))
        return false;
      table = reinterpret_cast<const int32_t *>(build.constant(given));
    } else if (n != x.shape[d]) {
      return false;
    }
    found->from[d].resize((size_t)n);
    for (int64_t i = 0; i < n; i++) {
      const int64_t index = table ? table[i] : i;
      if (index < -1 || index >= x.shape[d]) return false;
      found->from[d][i] = index < 0 ? -1 : index * x.stride[d];
    }
    if (d + 1 < x.ndim) found->outer *= n;
  }
  const int last = x.ndim - 1;
  found->straight = !one.has(2 + last) && y.stride[last] == 1 && x.stride[last] == 1;
  one.prepared = std::move(found);
  return true;
}

int32_t run(const Instruction &one, const Run &run) {
  const auto &g = static_cast<const Gather &>(*one.prepared);
  const Operand &to = one.operands[0];
  float *y = run.write<float>(to);
  const float *x = run.read<float>(one.operands[1]);
  const float fill = (float)one.floats[0];
  const int last = to.ndim - 1;
  const int64_t n = to.shape[last], step = to.stride[last];
  parallel_for(g.outer, 1 + (1 << 14) / n, run.threads, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; item++) {
      int64_t left = item, own = 0, other = 0;
      bool outside = false;
      for (int d = last - 1; d >= 0; d--) {
        const int64_t i = left % to.shape[d], from = g.from[d][i];
        left /= to.shape[d];
        own += i * to.stride[d];
        outside |= from < 0;
        other += from;
      }
      float *line = y + own;
      if (outside)
        for (int64_t i = 0; i < n; i++) line[i * step] = fill;
      else if (g.straight)
        std::memcpy(line, x + other, (size_t)n * sizeof(float));
      else
        for (int64_t i = 0; i < n; i++)
          line[i * step] = g.from[last][i] < 0 ? fill : x[other + g.from[last][i]];
    }
  });
  return COD_OK;
}

}  // namespace

extern const Kind kKind_gather;
const Kind kKind_gather{"gather", 1, check, run};

}  // namespace cod
