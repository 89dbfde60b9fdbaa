// Attention over views: heads and sets of tokens are shared out, each is worked on in cache.
#include <algorithm>
#include <atomic>
#include <vector>

#include "aligned.h"
#include "geometry.h"
#include "kernels.h"

namespace {

using cod::kernels;

// Pointers to the rows of one head of one set of tokens.
template <typename T>
void point(const cod_heads &x, int64_t batch, int64_t head, int64_t first, int64_t rows,
           int64_t all, std::vector<T *> &to) {
  T *base = reinterpret_cast<T *>(x.data) + head * x.head_stride;
  for (int64_t i = 0; i < rows; i++)
    to[(size_t)i] = base + (x.table ? x.table[batch * all + first + i] * x.row_stride
                                    : batch * x.batch_stride + (first + i) * x.row_stride);
}

const float *table_of(const cod_score_table &x, int64_t batch, int64_t head, int64_t first) {
  if (!x.data) return nullptr;
  return x.data + batch % x.batches * x.batch_stride + head * x.head_stride + first * x.row_stride;
}

bool usable(const cod_attention *a) {
  if (!a || a->batch < 0 || a->heads < 1 || a->queries < 0 || a->keys < 1 || a->depth < 1 ||
      a->width < 1 || a->depth > 4096 || a->products < COD_ATTENTION_FLOAT ||
      a->products > COD_ATTENTION_INT16)
    return false;
  for (const auto &x : a->bias)
    if (x.data && x.batches < 1) return false;
  return a->q.data && a->k.data && a->v.data && a->y.data;
}

}  // namespace

extern "C" int32_t cod_attend(const cod_attention *a, int32_t threads) {
  if (!usable(a)) return COD_BAD_ARGUMENT;
  const int64_t units = a->batch * a->heads;
  if (units == 0 || a->queries == 0) return COD_OK;
  const double work = (double)units * (double)a->queries * (double)a->keys;
  if (work * (double)(a->depth + a->width) < (double)cod::kWorthSharing) threads = 1;
  // few heads: queries are shared out, too
  const int64_t spread = 4 * (int64_t)threads;
  int64_t cuts = threads > 1 && units < spread ? (spread + units - 1) / units : 1;
  cuts = std::max<int64_t>(std::min(cuts, a->queries / 24), 1);
  std::atomic<bool> failed{false};
  cod::parallel_for(units * cuts, 1, threads, [&](int64_t begin, int64_t end) {
    const int64_t most = (a->queries + cuts - 1) / cuts;
    std::vector<const float *> q((size_t)most), k((size_t)a->keys), v((size_t)a->keys);
    std::vector<float *> y((size_t)most);
    cod::AttentionUnit unit{};
    unit.keys = a->keys, unit.depth = a->depth, unit.width = a->width, unit.scale = a->scale;
    unit.q = q.data(), unit.k = k.data(), unit.v = v.data(), unit.y = y.data();
    float *memory = cod::scratch(kernels().attention[a->products].memory(unit));
    if (!memory) failed = true;
    for (int64_t item = begin; item < end && memory; item++) {
      const int64_t batch = item / cuts / a->heads, head = item / cuts % a->heads;
      const int64_t first = item % cuts * most;
      unit.queries = std::min(most, a->queries - first);
      if (unit.queries <= 0) continue;
      point(a->q, batch, head, first, unit.queries, a->queries, q);
      point(a->k, batch, head, 0, a->keys, a->keys, k);
      point(a->v, batch, head, 0, a->keys, a->keys, v);
      point(a->y, batch, head, first, unit.queries, a->queries, y);
      for (int t = 0; t < 2; t++) {
        unit.bias[t] = table_of(a->bias[t], batch, head, first);
        unit.bias_stride[t] = a->bias[t].row_stride;
      }
      kernels().attention[a->products].run(unit, memory);
    }
  });
  return failed ? COD_NO_MEMORY : COD_OK;
}
