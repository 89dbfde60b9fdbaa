// Packs weights for products of carriers: nibbles (or bytes) in panels of columns, and multipliers.
#include "carrier_weight.h"

namespace {

using cod::kernels;
using cod::runs_of;
using cod::usable;

// Where the code of column j, depth k of a tap lies in a panel of bytes; and its nibble.
struct Place {
  int64_t unit, columns, vector;  // vector: bytes whose nibbles lie under those of the next ones
  int64_t byte(int64_t k, int64_t j) const {
    return k / unit * columns * unit + j * unit + k % unit;
  }
};

class Packer {
 public:
  Packer(const int8_t *codes, const int8_t *multiplier, const float *factor,
         const cod_carrier_weight &w)
      : codes_(codes), multiplier_(multiplier), factor_(factor), w_(w) {
    const auto &k = kernels();
    place_ = {k.carrier_unit, w.columns, 2 * (int64_t)k.carrier_pair};
    groups_ = w.group ? (w.inputs + w.group - 1) / w.group : 1;
  }

  void panel(int64_t p) const {
    const auto &k = kernels();
    const int64_t tap_bytes = w_.panel_bytes / w_.taps, runs = runs_of(w_);
    for (int64_t t = 0; t < w_.taps; t++) {
      uint8_t *to = w_.packed + p * w_.panel_bytes + t * tap_bytes;
      for (int64_t j = 0; j < w_.columns; j++)
        for (int64_t i = 0; i < w_.depth; i++) {
          const int code = code_at(p * w_.columns + j, t, i);
          const int64_t at = place_.byte(i, j);
          if (w_.bits == 8) {
            to[at] = (uint8_t)(code + k.carrier_lift);
            continue;
          }
          int nibble = code + COD_WEIGHT_OFFSET;
          if (k.carrier_mirror && multiplier_at(p * w_.columns + j, t, i) < 0) nibble = 15 - nibble;
          const int64_t pair = at / place_.vector, inside = at % place_.vector;
          const int64_t half = place_.vector / 2;
          to[pair * half + inside % half] |= (uint8_t)(inside < half ? nibble : nibble << 4);
        }
      for (int64_t r = 0; r < runs && w_.multiplier_bytes; r++)
        for (int64_t j = 0; j < w_.columns; j++)
          w_.multiplier[((p * w_.taps + t) * runs + r) * w_.columns + j] =
              (int8_t)multiplier_at(p * w_.columns + j, t, r * w_.run);
    }
    for (int64_t j = 0; j < w_.columns && p * w_.columns + j < w_.outputs; j++)
      w_.factor[p * w_.columns + j] = factor_[p * w_.columns + j];
  }

 private:
  int code_at(int64_t o, int64_t t, int64_t i) const {
    return o < w_.outputs && i < w_.inputs ? codes_[(o * w_.taps + t) * w_.inputs + i] : 0;
  }
  int multiplier_at(int64_t o, int64_t t, int64_t i) const {
    if (!multiplier_ || o >= w_.outputs || i >= w_.inputs) return 1;
    return multiplier_[(o * w_.taps + t) * groups_ + (w_.group ? i / w_.group : 0)];
  }

  const int8_t *codes_, *multiplier_;
  const float *factor_;
  const cod_carrier_weight &w_;
  Place place_;
  int64_t groups_;
};

bool codes_fit(const int8_t *codes, const int8_t *multiplier, const cod_carrier_weight &w) {
  const int low = w.bits == 8 ? -COD_LARGEST_CARRIER : -COD_WEIGHT_OFFSET;
  const int high = w.bits == 8 ? COD_LARGEST_CARRIER : COD_WEIGHT_OFFSET - 1;
  for (int64_t i = 0; i < w.outputs * w.taps * w.inputs; i++)
    if (codes[i] < low || codes[i] > high) return false;
  const int64_t groups = w.group ? (w.inputs + w.group - 1) / w.group : 1;
  for (int64_t i = 0; multiplier && i < w.outputs * w.taps * groups; i++)
    if (!multiplier[i] || multiplier[i] < -COD_LARGEST_MULTIPLIER ||
        multiplier[i] > COD_LARGEST_MULTIPLIER)
      return false;
  return true;
}

}  // namespace

extern "C" {

int32_t cod_carrier_weight_describe(int64_t outputs, int64_t taps, int64_t inputs, int32_t bits,
                                    int32_t group, int32_t multiplied, cod_carrier_weight *w) {
  if (!w || outputs < 1 || taps < 1 || inputs < 1 || group < 0 || (bits != 4 && bits != 8))
    return COD_BAD_ARGUMENT;
  if (group >= inputs) group = 0;
  if (group % 16 || (multiplied && bits == 8)) return COD_BAD_ARGUMENT;
  *w = cod_carrier_weight{};
  const auto &k = kernels();
  w->outputs = outputs, w->taps = taps, w->inputs = inputs;
  w->bits = bits, w->group = group, w->columns = k.carrier_columns;
  w->depth = cod_carrier_depth(inputs);
  if (w->depth > COD_LONGEST_SUM / taps) return COD_BAD_ARGUMENT;
  w->run = inputs <= 16 ? (int32_t)w->depth : group % 32 ? 16 : 32;
  w->panels = (outputs + w->columns - 1) / w->columns;
  w->panel_bytes = taps * w->depth * w->columns * bits / 8;
  w->packed_bytes = w->panels * w->panel_bytes;
  w->multiplier_bytes = multiplied ? w->panels * taps * runs_of(*w) * w->columns : 0;
  w->factor_count = w->panels * w->columns;
  return COD_OK;
}

int32_t cod_carrier_weight_pack(const int8_t *codes, const int8_t *multiplier, const float *factor,
                                cod_carrier_weight *w, int32_t threads) {
  if (!codes || !factor || !usable(w) || (multiplier != nullptr) != (w->multiplier_bytes > 0) ||
      !codes_fit(codes, multiplier, *w))
    return COD_BAD_ARGUMENT;
  const Packer packer(codes, multiplier, factor, *w);
  cod::parallel_for(w->panels, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; p++) packer.panel(p);
  });
  return COD_OK;
}

}  // extern "C"
