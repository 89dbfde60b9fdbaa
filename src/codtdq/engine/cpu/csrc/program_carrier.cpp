// Quantized operators: carriers of an input, and products with them. A unit belongs to `each` rows:
// [units], or [units, C] where channels have their own (pixels, fixed steps).
//   carry_groups: data int8 [rows, depth], unit, x [rows, C]; ints: each, bits, group, literal,
//     guarded, percentile?, tau?, zero ratio?, asymmetric; floats: percentile, tau, zero ratio.
//   carry_tokens, carry_pixels: data, unit, x, then of tokens shift?, scale?, inverse?, order
//   int32?;
//     ints: each, bits, group, trials, asymmetric, hadamard; floats: zero weight.
//   carry_fixed: data, unit, x, step? [1 or C], zero int32?; ints: each, bits, steps. Without a
//     step: that of the largest magnitude of all rows, or of each channel.
//   carrier_product: y [rows, N], data, unit, packed, multiplier?, factor, bias?, gain? [N], added?
//     [rows, N]; ints: geometry (13), each, taps, inputs, bits, group, activation. y = activation(
//     product + bias) gain + added.
//   carrier_depthwise: y [rows, N], data, unit, weight int8 [taps, C], factor [C], bias?; ints:
//     geometry, each, activation.
#include <cmath>

#include "carrier_weight.h"
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

// Units of so many rows; channels: where each has its own.
bool is_unit(const Operand &unit, int64_t rows, int64_t each, int64_t channels) {
  const int64_t count = units_of(rows, each);
  if (unit.ndim == 1) return is_vector(unit, count);
  return is_float(unit) && unit.ndim == 2 && unit.shape[0] == count && unit.shape[1] == channels &&
         is_dense(unit);
}

// data, unit and x of an encoder.
bool check_carry(const Instruction &one, bool doubled) {
  if (one.operand_count < 3 || !one.has(2) || one.int_count < 1) return false;
  const Operand &data = one.operands[0], &x = one.operands[2];
  const int64_t each = one.ints[0];
  if (!is_float(x) || x.ndim != 2 || each < 1 || each > kMostRows || x.shape[1] > 1 << 24)
    return false;
  return is_bytes(data, x.shape[0], cod_carrier_depth(x.shape[1] * (doubled ? 2 : 1))) &&
         is_unit(one.operands[1], x.shape[0], each, x.shape[1]);
}

cod_rows rows_of(const Operand &x, const Run &run) {
  return {run.read<float>(x), x.shape[0], x.shape[1], x.stride[0], x.stride[1], extent(x)};
}
int64_t unit_stride(const Operand &unit) { return unit.ndim == 2 ? unit.shape[1] : 0; }
cod_carried carried(const Instruction &one, const Run &run) {
  cod_carried out{};
  out.data = run.write<int8_t>(one.operands[0]), out.stride = one.operands[0].shape[1];
  if (one.operands[0].shape[0] > 1) out.stride = one.operands[0].stride[0];
  out.unit = run.write<float>(one.operands[1]), out.unit_rows = one.ints[0];
  out.unit_stride = unit_stride(one.operands[1]);
  out.bytes = extent(one.operands[0]), out.unit_count = extent(one.operands[1]);
  return out;
}

struct Spec : Prepared {
  cod_quant_spec spec{};
};

bool check_groups(Instruction &one, const Build &) {
  if (one.operand_count != 3 || one.int_count != 9 || one.float_count != 3 ||
      !check_carry(one, false) || one.operands[1].ndim != 1)
    return false;
  for (int i = 1; i < 9; i++)
    if (one.ints[i] < 0 || one.ints[i] > COD_MAX_GROUP) return false;
  auto found = std::make_unique<Spec>();
  const int64_t *n = one.ints;
  found->spec = {(int32_t)n[1], (int32_t)n[2], (int32_t)n[3], (int32_t)n[4],
                 (int32_t)n[5], (int32_t)n[6], (int32_t)n[7], COD_PRE_NONE,
                 one.floats[0], one.floats[1], one.floats[2]};
  const bool projected = n[4] || n[5] || n[6] || n[7];
  if (n[1] < 2 || n[1] > (n[8] ? 7 : 8) || n[2] < 1 || (n[8] && projected)) return false;
  // ranks of a group follow from the first and the last
  if (!(one.floats[0] >= 0 && one.floats[0] <= 1) || !(one.floats[2] >= 0 && one.floats[2] <= 1) ||
      !std::isfinite(one.floats[1]))
    return false;
  one.prepared = std::move(found);
  return true;
}

int32_t run_groups(const Instruction &one, const Run &run) {
  const cod_rows x = rows_of(one.operands[2], run);
  const cod_carried out = carried(one, run);
  return cod_carry_groups(&x, &static_cast<const Spec &>(*one.prepared).spec, (int)one.ints[8],
                          &out, run.threads);
}

bool check_search(const Instruction &one) {
  if (one.int_count != 6 || one.float_count != 1 || !check_carry(one, false)) return false;
  const int64_t *n = one.ints;
  return n[1] >= 2 && n[1] <= (n[4] ? 7 : 8) && n[2] >= 1 && n[2] <= COD_MAX_GROUP && n[3] >= 1 &&
         n[3] <= COD_MAX_TRIALS;
}

bool check_tokens(Instruction &one, const Build &build) {
  if (one.operand_count != 7 || !check_search(one) || one.operands[1].ndim != 1) return false;
  const int64_t channels = one.operands[2].shape[1];
  for (int i = 3; i < 6; i++)
    if (one.has(i) && !is_vector(one.operands[i], channels)) return false;
  if (one.has(4) != one.has(5)) return false;
  if (one.has(6)) {
    const Operand &order = one.operands[6];
    if (order.space != COD_SPACE_CONSTANT || !is_table(order, COD_TYPE_I32, channels)) return false;
    const auto *at = reinterpret_cast<const int32_t *>(build.constant(order));
    for (int64_t i = 0; i < channels; i++)
      if (at[i] < 0 || at[i] >= channels) return false;
  }
  return true;
}
bool check_pixels(Instruction &one, const Build &) {
  return one.operand_count == 3 && check_search(one);
}

cod_carry_spec search_of(const Instruction &one, const Run &run) {
  const int64_t *n = one.ints;
  cod_carry_spec spec{};
  spec.bits = (int32_t)n[1], spec.group = (int32_t)n[2], spec.trials = (int32_t)n[3];
  spec.asymmetric = n[4] != 0, spec.zero_weight = (float)one.floats[0];
  spec.transform.hadamard = n[5], spec.transform.count = one.operands[2].shape[1];
  const auto vector = [&](int i) {
    return one.has(i) ? run.read<float>(one.operands[i]) : nullptr;
  };
  spec.transform.shift = vector(3), spec.transform.scale = vector(4);
  spec.transform.inverse = vector(5);
  if (one.has(6)) spec.transform.order = run.read<int32_t>(one.operands[6]);
  return spec;
}

int32_t run_tokens(const Instruction &one, const Run &run) {
  const cod_rows x = rows_of(one.operands[2], run);
  const cod_carried out = carried(one, run);
  const cod_carry_spec spec = search_of(one, run);
  return cod_carry_tokens(&x, &spec, &out, run.threads);
}
int32_t run_pixels(const Instruction &one, const Run &run) {
  const cod_rows x = rows_of(one.operands[2], run);
  const cod_carried out = carried(one, run);
  const cod_carry_spec spec = search_of(one, run);
  return cod_carry_pixels(&x, &spec, &out, run.threads);
}

bool check_fixed(Instruction &one, const Build &) {
  if (one.operand_count != 5 || one.int_count != 3) return false;
  const int64_t bits = one.ints[1], steps = one.ints[2];
  if (bits < 2 || bits > 8 || !check_carry(one, one.has(4) && bits == 8)) return false;
  const int64_t channels = one.operands[2].shape[1];
  if (steps != 1 && steps != channels) return false;
  if (one.operands[1].ndim == 2 && steps != channels) return false;
  if (one.has(3) && !is_vector(one.operands[3], steps)) return false;
  return !one.has(4) || (one.has(3) && is_table(one.operands[4], COD_TYPE_I32, steps));
}

int32_t run_fixed(const Instruction &one, const Run &run) {
  const cod_rows x = rows_of(one.operands[2], run);
  const cod_carried out = carried(one, run);
  const int bits = (int)one.ints[1];
  const int64_t steps = one.ints[2];
  const int32_t *zero = one.has(4) ? run.read<int32_t>(one.operands[4]) : nullptr;
  if (one.has(3))
    return cod_carry_fixed(&x, bits, run.read<float>(one.operands[3]), zero, steps, COD_PRE_NONE,
                           &out, run.threads);
  std::vector<float> found((size_t)steps);
  const int32_t code = cod_absmax(&x, steps > 1, found.data(), steps, run.threads);
  if (code != COD_OK) return code;
  const float most = (float)((1 << (bits - 1)) - 1);
  for (float &step : found) {  // a NaN stays one
    step = step < COD_EPS ? COD_EPS : step;
    step = step / most;
    step = step < COD_EPS ? COD_EPS : step;
  }
  return cod_carry_fixed(&x, bits, found.data(), nullptr, steps, COD_PRE_NONE, &out, run.threads);
}

struct Product : Prepared {
  cod_geometry g;
  cod_carrier_weight w;
};

constexpr int32_t kOwnUnits = 35;  // carrier_depthwise: channels may have units of their own

// Whether rows of carriers and their units fit a geometry.
bool fits_input(const Instruction &one, const cod_geometry &g, int64_t channels, int64_t each) {
  if (one.operands[2].ndim != 1 && one.kind != kOwnUnits) return false;
  const int64_t rows = g.batch * g.in_h * g.in_w;
  const bool padded = g.kernel_h > 1 || g.kernel_w > 1 || g.pad_h || g.pad_w;
  return each >= 1 && each <= kMostRows && (!padded || each == g.in_h * g.in_w) &&
         channels <= 1 << 24 && is_bytes(one.operands[1], rows, cod_carrier_depth(channels)) &&
         is_unit(one.operands[2], rows, each, channels);
}

bool check_product(Instruction &one, const Build &build) {
  auto found = std::make_unique<Product>();
  cod_geometry &g = found->g;
  if (one.operand_count != 9 || one.int_count != 19 || !read_geometry(one.ints, g)) return false;
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
  for (int i = 6; i < 8; i++)
    if (one.has(i) && !is_vector(one.operands[i], y.shape[1])) return false;
  if (one.has(8) && (!is_rows(one.operands[8], rows) || !same_shape(one.operands[8], y)))
    return false;
  one.prepared = std::move(found);
  return true;
}

cod_carrier carriers_of(const Instruction &one, const Run &run) {
  const Operand &data = one.operands[1], &unit = one.operands[2];
  return {run.read<int8_t>(data),
          data.shape[0] > 1 ? data.stride[0] : data.shape[1],
          run.read<float>(unit),
          one.ints[13],
          unit_stride(unit),
          extent(data),
          extent(unit)};
}

// Rows of an output, with the bias that operand `bias` is.
cod_output output_of(const Instruction &one, int bias, int64_t activation, const Run &run) {
  const Operand &y = one.operands[0];
  return {run.write<float>(y),
          y.stride[0],
          one.has(bias) ? run.read<float>(one.operands[bias]) : nullptr,
          (int32_t)activation,
          extent(y),
          one.has(bias) ? one.operands[bias].shape[0] : 0};
}

int32_t run_product(const Instruction &one, const Run &run) {
  const auto &p = static_cast<const Product &>(*one.prepared);
  const cod_carrier x = carriers_of(one, run);
  const cod_output y = output_of(one, 6, one.ints[18], run);
  Joined joined{};
  if (one.has(7)) joined.gain = run.read<float>(one.operands[7]);
  if (one.has(8))
    joined.added = run.read<float>(one.operands[8]),
    joined.added_stride = one.operands[8].stride[0];
  return carrier_conv(x, p.g, p.w, y, joined, run.threads);
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
  const int64_t rows = g.batch * g.out_h * g.out_w;
  const bool part = one.rows && one.rows == rows && y.ndim == 2 && y.shape[0] <= rows;
  if (!is_rows(y, part ? y.shape[0] : rows) || y.shape[1] != outputs || act < 0 ||
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
  const cod_carrier x = carriers_of(one, run);
  const cod_output y = output_of(one, 5, one.ints[14], run);
  const Operand &weight = one.operands[3], &factor = one.operands[4];
  return carrier_depthwise(&x, &p.g, weight.shape[1], run.read<int8_t>(weight), extent(weight),
                           run.read<float>(factor), extent(factor), &y, run.row,
                           one.operands[0].shape[0], run.threads);
}

}  // namespace

extern const Kind kKind_carry_groups, kKind_carry_tokens, kKind_carry_pixels, kKind_carry_fixed,
    kKind_carrier_product, kKind_carrier_depthwise;
const Kind kKind_carry_groups{"carry_groups", 2, check_groups, run_groups};
const Kind kKind_carry_tokens{"carry_tokens", 2, check_tokens, run_tokens};
const Kind kKind_carry_pixels{"carry_pixels", 2, check_pixels, run_pixels};
const Kind kKind_carry_fixed{"carry_fixed", 2, check_fixed, run_fixed};
const Kind kKind_carrier_product{"carrier_product", 1, check_product, run_product};
const Kind kKind_carrier_depthwise{"carrier_depthwise", 1, check_depthwise, run_depthwise};

}  // namespace cod
