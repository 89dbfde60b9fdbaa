// attention: y = softmax(scale q k' + bias + mask) v, a block of queries of one head at a time.
// y [..., M, E], q [..., M, D], k [..., L, D], v [..., L, E], bias? [..., M, L], mask? [..., M, L],
// rows? int32 [tokens]; ints [products: COD_ATTENTION_*], floats [scale].
// rows: tokens of y, q, k and v lie elsewhere: token i of set s (all axes before that of the heads)
// is row rows[s M + i] of the tokens, which lie set after set.
#include <algorithm>
#include <atomic>
#include <vector>

#include "aligned.h"
#include "geometry.h"
#include "kernels.h"
#include "program.h"

namespace cod {
namespace {

constexpr int64_t kMostSide = 1 << 20;

struct Attended : Prepared {
  int lead;  // axes of sets and heads
  int64_t units, queries, keys, depth, width;
};

// Whether a table sends the tokens of a view [..., heads, n, *] to other tokens of it.
bool fits_table(const Operand &x, int lead, const int32_t *table, int64_t count) {
  int64_t next = x.shape[lead] * x.stride[lead], tokens = x.shape[lead];
  for (int d = lead - 2; d >= 0; d--) {
    if (x.shape[d] > 1 && x.stride[d] != next) return false;
    next *= x.shape[d], tokens *= x.shape[d];
  }
  for (int64_t i = 0; i < count && tokens == count; i++)
    if (table[i] < 0 || table[i] >= count) return false;
  return tokens == count;
}

bool check(Instruction &one, const Build &build) {
  if (one.operand_count != 7 || one.float_count != 1 || one.int_count != 1 ||
      one.ints[0] < COD_ATTENTION_FLOAT || one.ints[0] > COD_ATTENTION_INT8)
    return false;
  const Operand *x = one.operands;
  for (int i = 0; i < 6; i++) {
    if (!one.has(i) && i < 4) return false;
    if (one.has(i) && (!is_float(x[i]) || x[i].ndim != x[0].ndim)) return false;
  }
  const int lead = x[0].ndim - 2;
  if (lead < 0) return false;
  auto found = std::make_unique<Attended>();
  found->queries = x[1].shape[lead], found->depth = x[1].shape[lead + 1];
  found->keys = x[2].shape[lead], found->width = x[3].shape[lead + 1];
  if (found->queries > kMostSide || found->depth > 4096 || found->keys > kMostSide ||
      found->width > kMostSide)
    return false;
  if (x[0].shape[lead] != found->queries || x[0].shape[lead + 1] != found->width ||
      x[2].shape[lead + 1] != found->depth || x[3].shape[lead] != found->keys)
    return false;
  for (int i = 0; i < 4; i++)
    if (x[i].shape[lead + 1] > 1 && x[i].stride[lead + 1] != 1) return false;
  for (int i = 4; i < 6; i++)
    if (one.has(i) && (x[i].shape[lead] != found->queries || x[i].shape[lead + 1] != found->keys ||
                       (found->keys > 1 && x[i].stride[lead + 1] != 1)))
      return false;
  for (int i = 0; i < 6; i++)
    for (int d = 0; d < lead && one.has(i); d++)
      if (x[i].shape[d] != x[0].shape[d]) return false;
  if (one.has(6)) {
    const Operand &table = x[6];
    if (table.space != COD_SPACE_CONSTANT || table.type != COD_TYPE_I32 || table.ndim != 1 ||
        !is_dense(table) || lead < 1)
      return false;
    const auto *at = reinterpret_cast<const int32_t *>(build.constant(table));
    for (int i = 0; i < 4; i++)
      if (!fits_table(x[i], lead, at, table.shape[0])) return false;
  }
  found->lead = lead, found->units = 1;
  for (int d = 0; d < lead; d++) found->units *= x[0].shape[d];
  one.prepared = std::move(found);
  return true;
}

// Pointers to n rows from `first` on.
template <typename T>
void point(T *x, int64_t stride, const int32_t *table, int64_t first, int64_t n,
           std::vector<T *> &to) {
  for (int64_t i = 0; i < n; i++)
    to[(size_t)i] = x + (table ? table[first + i] : first + i) * stride;
}

int32_t run(const Instruction &one, const Run &run) {
  const auto &c = static_cast<const Attended &>(*one.prepared);
  const Operand *x = one.operands;
  const int lead = x[0].ndim - 2;
  const auto stride = [&](int i) { return x[i].stride[lead]; };
  const auto &kernel = kernels().attention[one.ints[0]];
  float *y = run.write<float>(x[0]);
  const float *q = run.read<float>(x[1]), *k = run.read<float>(x[2]), *v = run.read<float>(x[3]);
  const float *added[2] = {one.has(4) ? run.read<float>(x[4]) : nullptr,
                           one.has(5) ? run.read<float>(x[5]) : nullptr};
  const int32_t *table = one.has(6) ? run.read<int32_t>(x[6]) : nullptr;
  const int64_t work = c.units * c.queries * c.keys * (c.depth + c.width);
  const int threads = work < kWorthSharing ? 1 : run.threads;
  // few heads: queries are shared out, too
  const int64_t spread = 4 * (int64_t)threads;
  int64_t cuts = threads > 1 && c.units < spread ? (spread + c.units - 1) / c.units : 1;
  cuts = std::max<int64_t>(std::min(cuts, c.queries / 24), 1);
  const int64_t most = (c.queries + cuts - 1) / cuts;
  std::atomic<bool> failed{false};
  parallel_for(c.units * cuts, 1, threads, [&](int64_t begin, int64_t end) {
    std::vector<const float *> queries((size_t)most), keys((size_t)c.keys), values((size_t)c.keys);
    std::vector<float *> out((size_t)most);
    AttentionUnit unit{};
    unit.keys = c.keys, unit.depth = c.depth, unit.width = c.width;
    unit.scale = (float)one.floats[0];
    unit.q = queries.data(), unit.k = keys.data(), unit.v = values.data(), unit.y = out.data();
    float *memory = scratch(kernel.memory(unit));
    if (!memory) failed = true;
    for (int64_t item = begin; item < end && memory; item++) {
      const int64_t first = item % cuts * most;
      unit.queries = std::min(most, c.queries - first);
      if (unit.queries <= 0) continue;
      // where the unit begins; with a table its set does not count, but its part of that
      // head by head: its table of positions stays near while the sets go by
      const int64_t number = item / cuts, heads = c.lead ? x[0].shape[c.lead - 1] : 1;
      const int64_t sets = c.units / heads;
      int64_t at[6] = {}, left = number % sets * heads + number / sets, set = left;
      for (int d = c.lead - 1; d >= 0; left /= x[0].shape[d], d--) {
        const int64_t index = left % x[0].shape[d];
        if (d == c.lead - 1) set = left / x[0].shape[d];
        for (int i = 0; i < 6; i++)
          if (i > 3 || !table || d == c.lead - 1) at[i] += index * x[i].stride[d];
      }
      const int32_t *own = table ? table + set * c.queries : nullptr;
      point<const float>(q + at[1], stride(1), own, first, unit.queries, queries);
      point<const float>(k + at[2], stride(2), own, 0, c.keys, keys);
      point<const float>(v + at[3], stride(3), own, 0, c.keys, values);
      point<float>(y + at[0], stride(0), own, first, unit.queries, out);
      for (int t = 0; t < 2; t++) {
        unit.bias_stride[t] = stride(4 + t);
        unit.bias[t] = added[t] ? added[t] + at[4 + t] + first * stride(4 + t) : nullptr;
      }
      kernel.run(unit, memory);
    }
  });
  return failed ? COD_NO_MEMORY : COD_OK;
}

}  // namespace

extern const Kind kKind_attention;
const Kind kKind_attention{"attention", 1, check, run};

}  // namespace cod
