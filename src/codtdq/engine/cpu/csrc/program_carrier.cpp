// Quantized operators: carriers of an input, and products with them.
//   carry_groups: data int8 [rows, depth], unit [units], x [rows, C]; ints: rows of a unit, bits,
//     group, literal, guarded, percentile?, tau?, zero ratio?, asymmetric, before; floats:
//     percentile, tau, zero ratio.
//   carry_fixed: data, unit, x, step [1 or C], zero int32?; ints: rows of a unit, bits, before.
//   carrier_product: y [rows, N], data, unit, packed, multiplier?, factor, bias?; ints: geometry
//     (13), rows of a unit, taps, inputs, bits, group, activation.
//   carrier_depthwise: y [rows, N], data, unit, weight int8 [taps, C], factor [C], bias?; ints:
//     geometry, rows of a unit, activation.
#include "geometry.h"
#include "kernels.h"
#include "program.h"

namespace cod {

bool read_geometry(const int64_t *ints, cod_geometry &g);  // program_product.cpp
bool is_rows(const Operand &x, int64_t rows);

namespace {

constexpr int64_t kMostRows = (int64_t)1 << 40;

bool is_bytes(const Operand &x, int64_t rows, int64_t depth) {
  return x.type == COD_TYPE_I8 && x.ndim == 2 && x.shape[0] == rows && x.shape[1] == depth &&
         x.stride[1] == 1 && (rows == 1 || x.stride[0] >= depth);
}
bool is_table(const Operand &x, int32_t type, int64_t n) {
  return x.type == type && x.ndim == 1 && x.shape[0] == n && (n == 1 || x.stride[0] == 1);
}
int64_t units_of(int64_t rows, int64_t each) { return (rows + each - 1) / each; }

// data, unit and x of an encoder.
bool check_carry(const Instruction &one) {
  if (one.operand_count < 3 || !one.has(2) || one.int_count < 1) return false;
  const Operand &data = one.operands[0], &unit = one.operands[1], &x = one.operands[2];
  const int64_t each = one.ints[0];
  if (!is_float(x) || x.ndim != 2 || each < 1 || each > kMostRows || x.shape[1] > 1 << 24)
    return false;
  return is_bytes(data, x.shape[0], cod_carrier_depth(x.shape[1])) &&
         is_vector(unit, units_of(x.shape[0], each));
}

cod_rows rows_of(const Operand &x, const Run &run) {
  return {run.read<float>(x), x.shape[0], x.shape[1], x.stride[0], x.stride[1]};
}
cod_carried carried(const Instruction &one, const Run &run) {
  return {run.write<int8_t>(one.operands[0]), one.operands[0].stride[0],
          run.write<float>(one.operands[1]), one.ints[0], nullptr};
}

struct Spec : Prepared {
  cod_quant_spec spec{};
};

bool check_groups(Instruction &one, const Build &) {
  if (one.operand_count != 3 || one.int_count != 10 || one.float_count != 3 || !check_carry(one))
    return false;
  for (int i = 1; i < 10; i++)
    if (one.ints[i] < 0 || one.ints[i] > COD_MAX_GROUP) return false;
  auto found = std::make_unique<Spec>();
  const int64_t *n = one.ints;
  found->spec = {(int32_t)n[1], (int32_t)n[2], (int32_t)n[3], (int32_t)n[4],
                 (int32_t)n[5], (int32_t)n[6], (int32_t)n[7], (int32_t)n[9],
                 one.floats[0], one.floats[1], one.floats[2]};
  const bool projected = n[4] || n[5] || n[6] || n[7];
  if (n[1] < 2 || n[1] > (n[8] ? 7 : 8) || n[2] < 1 || (n[8] && projected) || n[9] > COD_PRE_RELU)
    return false;
  for (int i = 0; i < 3; i++)
    if (!(one.floats[i] >= 0.0 && one.floats[i] <= 1.0)) return false;
  one.prepared = std::move(found);
  return true;
}

int32_t run_groups(const Instruction &one, const Run &run) {
  const cod_rows x = rows_of(one.operands[2], run);
  const cod_carried out = carried(one, run);
  return cod_carry_groups(&x, &static_cast<const Spec &>(*one.prepared).spec, (int)one.ints[8],
                          &out, run.threads);
}

bool check_fixed(Instruction &one, const Build &) {
  if (one.operand_count != 5 || one.int_count != 3 || !check_carry(one) || !one.has(3))
    return false;
  const Operand &step = one.operands[3], &x = one.operands[2];
  if (step.ndim != 1 || (step.shape[0] != 1 && step.shape[0] != x.shape[1]) ||
      !is_vector(step, step.shape[0]))
    return false;
  if (one.has(4) && !is_table(one.operands[4], COD_TYPE_I32, step.shape[0])) return false;
  return one.ints[1] >= 2 && one.ints[1] <= (one.has(4) ? 7 : 8) && one.ints[2] >= 0 &&
         one.ints[2] <= COD_PRE_RELU;
}

int32_t run_fixed(const Instruction &one, const Run &run) {
  const cod_rows x = rows_of(one.operands[2], run);
  const cod_carried out = carried(one, run);
  const int32_t *zero = one.has(4) ? run.read<int32_t>(one.operands[4]) : nullptr;
  return cod_carry_fixed(&x, (int)one.ints[1], run.read<float>(one.operands[3]), zero,
                         one.operands[3].shape[0], (int)one.ints[2], &out, run.threads);
}

struct Product : Prepared {
  cod_geometry g;
  cod_carrier_weight w;
};

// Whether rows of carriers and their units fit a geometry.
bool fits_input(const Instruction &one, const cod_geometry &g, int64_t channels, int64_t each) {
  const int64_t rows = g.batch * g.in_h * g.in_w;
  const bool padded = g.kernel_h > 1 || g.kernel_w > 1 || g.pad_h || g.pad_w;
  return each >= 1 && each <= kMostRows && (!padded || each == g.in_h * g.in_w) &&
         channels <= 1 << 24 && is_bytes(one.operands[1], rows, cod_carrier_depth(channels)) &&
         is_vector(one.operands[2], units_of(rows, each));
}
bool is_direct(const cod_geometry &g) {
  return g.kernel_h == 1 && g.kernel_w == 1 && g.stride_h == 1 && g.stride_w == 1 && !g.pad_h &&
         !g.pad_w;
}

bool check_product(Instruction &one, const Build &build) {
  auto found = std::make_unique<Product>();
  cod_geometry &g = found->g;
  if (one.operand_count != 7 || one.int_count != 19 || !read_geometry(one.ints, g)) return false;
  for (int i = 1; i < 6; i++)
    if (!one.has(i) && i != 4) return false;
  const int64_t *n = one.ints + 13;
  const int64_t rows = g.batch * g.out_h * g.out_w, taps = (int64_t)g.kernel_h * g.kernel_w;
  const Operand &y = one.operands[0];
  if (!is_rows(y, rows) || y.shape[1] > 1 << 24 || n[1] != taps || n[2] < 1 || n[3] < 0 ||
      n[3] > 8 || n[4] < 0 || n[4] > 1 << 24 || n[5] < 0 || n[5] > COD_ACT_RELU)
    return false;
  if (is_direct(g) && rows != g.batch * g.in_h * g.in_w) return false;
  if (!fits_input(one, g, n[2], n[0])) return false;
  cod_carrier_weight &w = found->w;
  if (cod_carrier_weight_describe(y.shape[1], taps, n[2], (int32_t)n[3], (int32_t)n[4], one.has(4),
                                  &w))
    return false;
  const Operand &packed = one.operands[3], &factor = one.operands[5];
  if (packed.space != COD_SPACE_CONSTANT || factor.space != COD_SPACE_CONSTANT ||
      !is_table(packed, COD_TYPE_U8, w.packed_bytes) ||
      !is_table(factor, COD_TYPE_F32, w.factor_count))
    return false;
  w.packed = const_cast<uint8_t *>(build.constant(packed));
  w.factor = reinterpret_cast<float *>(const_cast<uint8_t *>(build.constant(factor)));
  if (one.has(4)) {
    const Operand &multiplier = one.operands[4];
    if (multiplier.space != COD_SPACE_CONSTANT ||
        !is_table(multiplier, COD_TYPE_I8, w.multiplier_bytes))
      return false;
    w.multiplier = reinterpret_cast<int8_t *>(const_cast<uint8_t *>(build.constant(multiplier)));
  }
  if ((uintptr_t)w.packed % 64 || (uintptr_t)w.factor % 64) return false;
  if (one.has(6) && !is_vector(one.operands[6], y.shape[1])) return false;
  one.prepared = std::move(found);
  return true;
}

int32_t run_product(const Instruction &one, const Run &run) {
  const auto &p = static_cast<const Product &>(*one.prepared);
  const Operand &data = one.operands[1];
  const cod_carrier x{run.read<int8_t>(data), data.stride[0], run.read<float>(one.operands[2]),
                      one.ints[13]};
  const cod_output y{run.write<float>(one.operands[0]), one.operands[0].stride[0],
                     one.has(6) ? run.read<float>(one.operands[6]) : nullptr,
                     (int32_t)one.ints[18]};
  return cod_carrier_conv(&x, &p.g, &p.w, &y, run.threads);
}

bool check_depthwise(Instruction &one, const Build &) {
  auto found = std::make_unique<Product>();
  cod_geometry &g = found->g;
  if (one.operand_count != 6 || one.int_count != 15 || !read_geometry(one.ints, g)) return false;
  for (int i = 1; i < 5; i++)
    if (!one.has(i)) return false;
  const Operand &y = one.operands[0], &w = one.operands[3];
  const int64_t taps = (int64_t)g.kernel_h * g.kernel_w, each = one.ints[13], act = one.ints[14];
  if (w.type != COD_TYPE_I8 || w.ndim != 2 || w.shape[0] != taps || !is_dense(w) || taps > 1024)
    return false;
  const int64_t channels = w.shape[1],
                outputs = act == COD_ACT_GATED_GELU ? channels / 2 : channels;
  if (!is_rows(y, g.batch * g.out_h * g.out_w) || y.shape[1] != outputs || act < 0 ||
      act > COD_ACT_GATED_GELU || (act == COD_ACT_GATED_GELU && channels % 2) ||
      each != g.in_h * g.in_w || !fits_input(one, g, channels, each) ||
      !is_vector(one.operands[4], channels) ||
      (one.has(5) && !is_vector(one.operands[5], channels)))
    return false;
  one.prepared = std::move(found);
  return true;
}

int32_t run_depthwise(const Instruction &one, const Run &run) {
  const auto &p = static_cast<const Product &>(*one.prepared);
  const Operand &data = one.operands[1];
  const cod_carrier x{run.read<int8_t>(data), data.stride[0], run.read<float>(one.operands[2]),
                      one.ints[13]};
  const cod_output y{run.write<float>(one.operands[0]), one.operands[0].stride[0],
                     one.has(5) ? run.read<float>(one.operands[5]) : nullptr,
                     (int32_t)one.ints[14]};
  return cod_carrier_depthwise(&x, &p.g, one.operands[3].shape[1],
                               run.read<int8_t>(one.operands[3]), run.read<float>(one.operands[4]),
                               &y, run.threads);
}

}  // namespace

extern const Kind kKind_carry_groups, kKind_carry_fixed, kKind_carrier_product,
    kKind_carrier_depthwise;
const Kind kKind_carry_groups{"carry_groups", 2, check_groups, run_groups};
const Kind kKind_carry_fixed{"carry_fixed", 2, check_fixed, run_fixed};
const Kind kKind_carrier_product{"carrier_product", 1, check_product, run_product};
const Kind kKind_carrier_depthwise{"carrier_depthwise", 1, check_depthwise, run_depthwise};

}  // namespace cod
