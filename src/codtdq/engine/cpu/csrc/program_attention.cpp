// attention: y = softmax(scale q k' + bias) v, a block of queries of one head at a time.
// y [..., M, E], q [..., M, D], k [..., L, D], v [..., L, E], bias? [..., M, L]; floats [scale].
#include <atomic>
#include <cstring>

#include "float_product.h"
#include "program_loops.h"

namespace cod {
namespace {

struct Attention : Loops {
  int64_t queries, keys, depth, values;
};

bool check(Instruction &one, const Build &) {
  if (one.operand_count != 5 || one.float_count != 1) return false;
  for (int i = 0; i < 5; i++) {
    if (!one.has(i) && i < 4) return false;
    if (one.has(i) && (!is_float(one.operands[i]) || one.operands[i].ndim != one.operands[0].ndim))
      return false;
  }
  const int lead = one.operands[0].ndim - 2;
  if (lead < 0) return false;
  const Operand &y = one.operands[0], &q = one.operands[1], &k = one.operands[2],
                &v = one.operands[3], &bias = one.operands[4];
  auto found = std::make_unique<Attention>();
  found->queries = q.shape[lead], found->depth = q.shape[lead + 1];
  found->keys = k.shape[lead], found->values = v.shape[lead + 1];
  if (found->queries > kMostSide || found->depth > kMostSide || found->keys > kMostSide ||
      found->values > kMostSide)
    return false;
  if (y.shape[lead] != found->queries || y.shape[lead + 1] != found->values ||
      k.shape[lead + 1] != found->depth || v.shape[lead] != found->keys ||
      y.stride[lead + 1] != 1 || q.stride[lead + 1] != 1)
    return false;
  if (one.has(4) && (bias.shape[lead] != found->queries || bias.shape[lead + 1] != found->keys ||
                     bias.stride[lead + 1] != 1))
    return false;
  Operand parts[5] = {y, q, k, v, one.has(4) ? bias : y};
  const Operand *all[5];
  for (int i = 0; i < 5; i++) {
    parts[i].ndim = lead + 1, parts[i].shape[lead] = 1;
    all[i] = &parts[i];
  }
  if (!found->set(all, 5, true)) return false;
  one.prepared = std::move(found);
  return true;
}

int32_t run(const Instruction &one, const Run &run) {
  const auto &c = static_cast<const Attention &>(*one.prepared);
  const int lead = one.operands[0].ndim - 2;
  const auto stride = [&](int i, int axis) { return one.operands[i].stride[lead + axis]; };
  const auto &f = kernels().floats;
  const Panels scores(c.depth, c.keys), mixed(c.keys, c.values);
  float *y = run.write<float>(one.operands[0]);
  const float *q = run.read<float>(one.operands[1]), *k = run.read<float>(one.operands[2]);
  const float *v = run.read<float>(one.operands[3]);
  const float *bias = one.has(4) ? run.read<float>(one.operands[4]) : nullptr;
  const float scale = (float)one.floats[0];
  const int64_t row = (c.keys + 15) / 16 * 16, blocks = (c.queries + kFloatBlock - 1) / kFloatBlock;
  const int64_t cuts = c.outer >= 2 * run.threads ? 1 : std::min<int64_t>(blocks, run.threads);
  const int64_t whole = [](int64_t n) { return (n + 31) / 32 * 32; }(scores.floats());
  const int64_t other = (mixed.floats() + 31) / 32 * 32;
  const bool small = c.outer * c.queries * c.keys * c.depth < 1 << 16;
  std::atomic<bool> failed{false};
  parallel_for(c.outer * cuts, 1, small ? 1 : run.threads, [&](int64_t begin, int64_t end) {
    float *memory = scratch(whole + other + kFloatBlock * row);
    if (!memory) {
      failed = true;
      return;
    }
    float *keys = memory, *values = memory + whole, *shares = memory + whole + other;
    const float *rows[kFloatBlock + 8];
    for (int64_t item = begin; item < end; item++)
      c.each(item / cuts, item / cuts + 1, [&](const int64_t *at) {
        scores.pack(k + at[2], stride(2, 1), stride(2, 0), keys);
        mixed.pack(v + at[3], stride(3, 0), stride(3, 1), values);
        const int64_t cut = item % cuts;
        for (int64_t b = cut * blocks / cuts; b < (cut + 1) * blocks / cuts; b++) {
          const int64_t first = b * kFloatBlock, n = std::min(kFloatBlock, c.queries - first);
          point(q + at[1] + first * stride(1, 0), stride(1, 0), n, rows);
          multiply({rows, n, 1, c.depth}, scores, keys, 0, scores.count(),
                   {shares, row, nullptr, nullptr, 0, kCopyOp});
          for (int64_t i = 0; i < n; i++) {
            float *own = shares + i * row;
            f.binary(kMultiply, own, 1, &scale, 0, c.keys, own);
            if (bias)
              f.binary(kAdd, own, 1, bias + at[4] + (first + i) * stride(4, 0), 1, c.keys, own);
            f.softmax(own, c.keys, own);
          }
          point(shares, row, n, rows);
          multiply({rows, n, 1, c.keys}, mixed, values, 0, mixed.count(),
                   {y + at[0] + first * stride(0, 0), stride(0, 0), nullptr, nullptr, 0, kCopyOp});
        }
      });
  });
  return failed ? COD_NO_MEMORY : COD_OK;
}

}  // namespace

extern const Kind kKind_attention;
const Kind kKind_attention{"attention", 1, check, run};

}  // namespace cod
