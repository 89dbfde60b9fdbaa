// Float products: conv (Linear is one with a 1x1 kernel), matmul of two computed factors, deform.
//   conv: y [rows, N], x [input rows, C], packed weight, bias?, residual? [rows, N]; ints:
//     geometry (13 numbers), activation.
//   matmul: y [..., M, N], x [..., M, K], z [..., K, N].
//   deform: y [rows, N], x [rows, C], offsets [B, 18, H, W], packed weight [9 C, N], bias?.
#include <atomic>
#include <cstring>

#include "float_product.h"
#include "program_loops.h"

namespace cod {

// Sizes are bounded, so that no product of them overflows.
bool read_geometry(const int64_t *ints, cod_geometry &g) {
  for (int i = 0; i < 13; i++)
    if (ints[i] < 0 || ints[i] > (1 << 24)) return false;
  g.batch = ints[0], g.in_h = ints[1], g.in_w = ints[2], g.out_h = ints[3], g.out_w = ints[4];
  int32_t *small[] = {&g.kernel_h, &g.kernel_w, &g.stride_h,   &g.stride_w,
                      &g.pad_h,    &g.pad_w,    &g.dilation_h, &g.dilation_w};
  for (int i = 0; i < 8; i++) {
    if (ints[5 + i] > 1 << 16) return false;
    *small[i] = (int32_t)ints[5 + i];
  }
  const int64_t most = (int64_t)1 << 40;
  return fits(&g) && g.batch * g.in_h < most / (g.in_w + 1) &&
         g.batch * g.out_h < most / (g.out_w + 1) && (int64_t)g.kernel_h * g.kernel_w < 1 << 20;
}

bool is_rows(const Operand &x, int64_t rows) {
  return is_float(x) && x.ndim == 2 && x.shape[0] == rows && (x.shape[1] == 1 || x.stride[1] == 1);
}

namespace {

struct Conv : Prepared {
  cod_geometry g;
  int64_t rows, channels, outputs, taps;
  bool direct;
};

bool is_packed(const Operand &w, const Build &build, int64_t depth, int64_t outputs) {
  return w.space == COD_SPACE_CONSTANT && w.ndim == 1 && is_float(w) &&
         w.shape[0] == Panels(depth, outputs).floats() && is_dense(w) &&
         (uintptr_t)build.constant(w) % 64 == 0;
}

bool check_conv(Instruction &one, const Build &build) {
  auto found = std::make_unique<Conv>();
  if (one.operand_count != 5 || one.int_count != 14 || !one.has(1) || !one.has(2) ||
      !read_geometry(one.ints, found->g) || one.ints[13] < 0 || one.ints[13] >= kUnaryOps)
    return false;
  const cod_geometry &g = found->g;
  const Operand &y = one.operands[0], &x = one.operands[1];
  found->rows = g.batch * g.out_h * g.out_w;
  found->taps = (int64_t)g.kernel_h * g.kernel_w;
  if (!is_rows(y, found->rows) || !is_rows(x, g.batch * g.in_h * g.in_w)) return false;
  found->outputs = y.shape[1], found->channels = x.shape[1];
  if (found->channels > 1 << 24 || found->outputs > 1 << 24) return false;
  found->direct = found->taps == 1 && g.stride_h == 1 && g.stride_w == 1 && !g.pad_h && !g.pad_w;
  if (found->direct && found->rows != x.shape[0]) return false;
  if (one.has(3) && !is_vector(one.operands[3], found->outputs)) return false;
  if (one.has(4) && (!is_rows(one.operands[4], found->rows) || !same_shape(one.operands[4], y)))
    return false;
  if (!is_packed(one.operands[2], build, found->taps * found->channels, found->outputs))
    return false;
  one.prepared = std::move(found);
  return true;
}

int32_t run_conv(const Instruction &one, const Run &run) {
  const auto &c = static_cast<const Conv &>(*one.prepared);
  const Panels panels(c.taps * c.channels, c.outputs);
  const Operand &to = one.operands[0], &from = one.operands[1];
  const float *x = run.read<float>(from), *packed = run.read<float>(one.operands[2]);
  RowResult out{run.write<float>(to), to.stride[0], nullptr, nullptr, 0, (int)one.ints[13]};
  if (one.has(3)) out.bias = run.read<float>(one.operands[3]);
  if (one.has(4))
    out.residual = run.read<float>(one.operands[4]),
    out.residual_stride = one.operands[4].stride[0];
  const int64_t blocks = (c.rows + kFloatBlock - 1) / kFloatBlock, spread = 3 * run.threads;
  int64_t cuts = run.threads > 1 && blocks < spread ? (spread + blocks - 1) / blocks : 1;
  cuts = std::min(cuts, panels.count());
  const bool small = c.rows * c.taps * c.channels * c.outputs < 1 << 17;
  const int64_t tile = kernels().floats.rows;
  parallel_for(blocks * cuts, 1, small ? 1 : run.threads, [&](int64_t begin, int64_t end) {
    std::vector<const float *> rows((size_t)(c.taps * kFloatBlock));
    const std::vector<float> zeros(c.direct ? 0 : (size_t)c.channels, 0.0f);
    for (int64_t item = begin; item < end; item++) {
      const int64_t first = item / cuts * kFloatBlock, cut = item % cuts;
      const int64_t n = std::min(kFloatBlock, c.rows - first);
      if (c.direct) {
        point(x + first * from.stride[0], from.stride[0], n, rows.data());
      } else {
        Walk walk(c.g, first);
        for (int64_t i = 0; i < (n + tile - 1) / tile * tile; i++, walk.next()) {
          const float **at = &rows[i / tile * tile * c.taps + i % tile];
          for (int64_t t = 0; t < c.taps; t++) at[t * tile] = zeros.data();
          if (i < n)
            walk.taps([&](int64_t t, int64_t row) {
              if (row >= 0) at[t * tile] = x + row * from.stride[0];
            });
        }
      }
      RowResult own = out;
      own.y += first * out.stride;
      if (own.residual) own.residual += first * out.residual_stride;
      multiply({rows.data(), n, c.taps, c.channels}, panels, packed, cut * panels.count() / cuts,
               (cut + 1) * panels.count() / cuts, own);
    }
  });
  return COD_OK;
}

struct Matmul : Loops {
  int64_t m, n, k;
};

bool check_matmul(Instruction &one, const Build &) {
  if (one.operand_count != 3 || !one.has(1) || !one.has(2)) return false;
  const Operand &y = one.operands[0], &x = one.operands[1], &z = one.operands[2];
  const int lead = y.ndim - 2;
  if (lead < 0 || x.ndim != y.ndim || z.ndim != y.ndim || !is_float(x) || !is_float(y) ||
      !is_float(z))
    return false;
  auto found = std::make_unique<Matmul>();
  found->m = y.shape[lead], found->n = y.shape[lead + 1], found->k = x.shape[lead + 1];
  if (found->m > kMostSide || found->n > kMostSide || found->k > kMostSide) return false;
  if (x.shape[lead] != found->m || z.shape[lead] != found->k || z.shape[lead + 1] != found->n ||
      (found->n > 1 && y.stride[lead + 1] != 1) || (found->k > 1 && x.stride[lead + 1] != 1))
    return false;
  Operand parts[3] = {y, x, z};
  for (Operand &part : parts) part.ndim = lead + 1, part.shape[lead] = 1;
  const Operand *all[] = {&parts[0], &parts[1], &parts[2]};
  if (!found->set(all, 3, true)) return false;
  one.prepared = std::move(found);
  return true;
}

int32_t run_matmul(const Instruction &one, const Run &run) {
  const auto &c = static_cast<const Matmul &>(*one.prepared);
  const Operand &to = one.operands[0], &from = one.operands[1], &other = one.operands[2];
  const int lead = to.ndim - 2;
  const Panels panels(c.k, c.n);
  float *y = run.write<float>(to);
  const float *x = run.read<float>(from), *z = run.read<float>(other);
  // few products: rows are cut for threads, each packs the second factor for itself
  const int64_t blocks = (c.m + kFloatBlock - 1) / kFloatBlock;
  const int64_t cuts = c.outer >= 2 * run.threads ? 1 : std::min<int64_t>(blocks, run.threads);
  const bool small = c.outer * c.m * c.n * c.k < 1 << 16;
  std::atomic<bool> failed{false};
  parallel_for(c.outer * cuts, 1, small ? 1 : run.threads, [&](int64_t begin, int64_t end) {
    float *packed = scratch(panels.floats());
    if (!packed) {
      failed = true;
      return;
    }
    const float *rows[kFloatBlock + 8];
    for (int64_t item = begin; item < end; item++)
      c.each(item / cuts, item / cuts + 1, [&](const int64_t *at) {
        panels.pack(z + at[2], other.stride[lead], other.stride[lead + 1], packed);
        const int64_t cut = item % cuts;
        for (int64_t b = cut * blocks / cuts; b < (cut + 1) * blocks / cuts; b++) {
          const int64_t first = b * kFloatBlock, n = std::min(kFloatBlock, c.m - first);
          point(x + at[1] + first * from.stride[lead], from.stride[lead], n, rows);
          multiply(
              {rows, n, 1, c.k}, panels, packed, 0, panels.count(),
              {y + at[0] + first * to.stride[lead], to.stride[lead], nullptr, nullptr, 0, kCopyOp});
        }
      });
  });
  return failed ? COD_NO_MEMORY : COD_OK;
}

constexpr int64_t kPoints = 9;

bool check_deform(Instruction &one, const Build &build) {
  if (one.operand_count != 5 || !one.has(1) || !one.has(2) || !one.has(3)) return false;
  const Operand &y = one.operands[0], &x = one.operands[1], &offsets = one.operands[2];
  if (offsets.ndim != 4 || !is_float(offsets) || offsets.shape[1] != 2 * kPoints) return false;
  const int64_t rows = offsets.shape[0] * offsets.shape[2] * offsets.shape[3];
  return is_rows(y, rows) && is_rows(x, rows) && x.stride[0] == x.shape[1] &&
         (!one.has(4) || is_vector(one.operands[4], y.shape[1])) &&
         is_packed(one.operands[3], build, kPoints * x.shape[1], y.shape[1]);
}

int32_t run_deform(const Instruction &one, const Run &run) {
  const Operand &to = one.operands[0], &from = one.operands[1], &offsets = one.operands[2];
  const cod_deform shape{offsets.shape[0],  offsets.shape[2],  offsets.shape[3],  from.shape[1],
                         offsets.stride[0], offsets.stride[1], offsets.stride[2], offsets.stride[3],
                         extent(from),      extent(offsets)};
  const Operand &packed = one.operands[3];
  const cod_output y{
      run.write<float>(to), to.stride[0], one.has(4) ? run.read<float>(one.operands[4]) : nullptr,
      COD_ACT_NONE,         extent(to),   one.has(4) ? extent(one.operands[4]) : 0};
  return cod_deform_conv(run.read<float>(from), run.read<float>(offsets), &shape,
                         run.read<float>(packed), extent(packed), to.shape[1], &y, run.threads);
}

}  // namespace

extern const Kind kKind_conv, kKind_matmul, kKind_deform;
const Kind kKind_conv{"conv", 1, check_conv, run_conv};
const Kind kKind_matmul{"matmul", 1, check_matmul, run_matmul};
const Kind kKind_deform{"deform", 1, check_deform, run_deform};

}  // namespace cod

extern "C" {

int64_t cod_float_packed(int64_t depth, int64_t outputs) {
  constexpr int64_t most = (int64_t)1 << 46;  // no size in bytes overflows, rounded up to a panel
  return depth < 1 || outputs < 1 || !cod::fills(most, depth, outputs)
             ? 0
             : cod::Panels(depth, outputs).floats();
}

int32_t cod_float_pack(const float *w, int64_t count, int64_t depth, int64_t outputs,
                       int64_t depth_stride, int64_t output_stride, float *packed,
                       int64_t packed_count) {
  const int64_t needed = cod_float_packed(depth, outputs);
  if (!w || !packed || needed < 1 || packed_count < needed ||
      !cod::holds(count, {{depth, depth_stride}, {outputs, output_stride}}))
    return COD_BAD_ARGUMENT;
  cod::Panels(depth, outputs).pack(w, depth_stride, output_stride, packed);
  return COD_OK;
}

int32_t cod_float_unpack(const float *packed, int64_t packed_count, int64_t depth, int64_t outputs,
                         float *w, int64_t count) {
  const int64_t needed = cod_float_packed(depth, outputs);
  if (!w || !packed || needed < 1 || packed_count < needed || !cod::fills(count, depth, outputs))
    return COD_BAD_ARGUMENT;
  cod::Panels(depth, outputs).unpack(packed, w);
  return COD_OK;
}

}  // extern "C"
