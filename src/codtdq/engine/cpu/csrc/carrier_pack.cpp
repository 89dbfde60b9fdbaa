// Weights of products of carriers: from codes in their own order to the panels of an instruction
// set, and back. Files and checkpoints hold the former; nothing but memory holds panels.
#include <algorithm>
#include <cstring>
#include <exception>

#include "carrier_weight.h"

namespace {

using cod::groups_of;
using cod::kernels;
using cod::parts;
using cod::runs_of;
using cod::usable;

bool multipliers_fit(const int8_t *multiplier, const cod_carrier_weight &w) {
  for (int64_t i = 0; multiplier && i < w.outputs * w.taps * groups_of(w); i++)
    if (!multiplier[i] || multiplier[i] < -COD_LARGEST_MULTIPLIER ||
        multiplier[i] > COD_LARGEST_MULTIPLIER)
      return false;
  return true;
}

// Where codes come from: a byte each, [outputs, taps, inputs].
struct Bytes {
  const int8_t *codes;
  int64_t row;  // codes of an output

  bool fit(const cod_carrier_weight &w) const {
    const int low = w.bits == 8 ? -COD_LARGEST_CARRIER : -COD_WEIGHT_OFFSET;
    const int high = w.bits == 8 ? COD_LARGEST_CARRIER : COD_WEIGHT_OFFSET - 1;
    int least = 0, most = 0;
    for (int64_t i = 0; i < w.outputs * row; i++)
      least = std::min<int>(least, codes[i]), most = std::max<int>(most, codes[i]);
    return least >= low && most <= high;
  }
  int at(int64_t output, int64_t i) const { return codes[output * row + i]; }
  const uint8_t *pairs(int64_t, int64_t) const { return nullptr; }
};

// Or two to a byte, in two's complement, the first in the low half; outputs begin with a byte.
struct Nibbles {
  const uint8_t *bytes;
  int64_t row;

  bool fit(const cod_carrier_weight &w) const { return w.bits == 4; }
  int at(int64_t output, int64_t i) const {
    const int byte = bytes[output * parts(row, 2) + i / 2], lifted = (i % 2 ? byte >> 4 : byte) ^ 8;
    return (lifted & 15) - COD_WEIGHT_OFFSET;
  }
  // From code i of an output on, where it begins with a byte.
  const uint8_t *pairs(int64_t output, int64_t i) const {
    if (i % 2 || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__) return nullptr;
    return bytes + output * parts(row, 2) + i / 2;
  }
};

// Calls visit(to, shift, o, t, i, count) for every unit of a panel's tap from input `begin` on,
// where a pair begins: `count` codes of output o from input i on lie in the bytes from `to` on,
// shifted left by `shift` where they are nibbles. Codes of outputs and inputs that there are not
// come, too: i may reach to the depth.
template <typename F>
void each_unit(const cod_carrier_weight &w, int64_t panel, int64_t tap, int64_t begin,
               const F &visit) {
  const auto &k = kernels();
  const int64_t unit = k.carrier_unit, pair = 2 * (int64_t)k.carrier_pair, half = pair / 2;
  uint8_t *bytes = w.packed + panel * w.panel_bytes + tap * (w.panel_bytes / w.taps) +
                   (w.bits == 8 ? 0 : begin * w.columns / 2);
  int64_t inside = 0;  // of a pair, whose nibbles lie from `bytes` on
  for (int64_t i = begin; i < w.depth; i += unit)
    for (int64_t j = 0; j < w.columns; j++) {
      const int64_t output = panel * w.columns + j;
      if (w.bits == 8)
        visit(bytes + i * w.columns + j * unit, 0, output, tap, i, unit);
      else
        visit(bytes + (inside < half ? inside : inside - half), inside < half ? 0 : 4, output, tap,
              i, unit);
      inside += unit;
      if (w.bits == 4 && inside == pair) inside = 0, bytes += half;
    }
}

constexpr int64_t kMostColumns = 64;

// Nibbles of two bytes as four bytes.
inline uint32_t four(uint32_t v) {
  v = (v | v << 8) & 0x00FF00FF;
  return (v | v << 4) & 0x0F0F0F0F;
}

// Packs the codes from `begin` to `end` of all rows of a panel; returns where the next ones go.
// Loads, then sums: the latter for several columns at once.
template <int kUnit>
uint8_t *units(const uint8_t *const *rows, const uint32_t *lift, int64_t columns, int64_t half,
               int64_t begin, int64_t end, uint8_t *to) {
  constexpr int64_t kWords = kUnit / 4;
  const int64_t side = half / kUnit;  // columns whose nibbles lie in one half
  uint32_t nibbles[kMostColumns * kWords], bytes[kMostColumns * kWords];
  for (int64_t i = begin; i < end; i += kUnit) {
    for (int64_t j = 0; j < columns; j++)
      for (int64_t u = 0; u < kWords; u++) {
        uint16_t pair;
        std::memcpy(&pair, rows[j] + i / 2 + 2 * u, 2);
        nibbles[j * kWords + u] = pair;
      }
    for (int64_t n = 0; n < columns * kWords; n++) bytes[n] = four(nibbles[n]) ^ lift[n / kWords];
    for (int64_t j = 0; j < columns; j += 2 * side, to += half)
      for (int64_t n = 0; n < side * kWords; n++) {
        const uint32_t packed = bytes[j * kWords + n] | bytes[(j + side) * kWords + n] << 4;
        std::memcpy(to + 4 * n, &packed, 4);
      }
  }
  return to;
}

template <typename Source>
class Packer {
 public:
  Packer(const Source &codes, const int8_t *multiplier, const float *factor,
         const cod_carrier_weight &w)
      : codes_(codes), multiplier_(multiplier), factor_(factor), w_(w) {}

  void panel(int64_t p) const {
    const auto &k = kernels();
    const bool mirror = k.carrier_mirror && multiplier_;
    const cod_carrier_weight w = w_;  // here, no byte that is written can be a part of it
    const Source codes = codes_;
    for (int64_t tap = 0; tap < w.taps; tap++) {
      each_unit(w, p, tap, whole_units(p, tap, mirror),
                [&](uint8_t *to, int shift, int64_t o, int64_t t, int64_t i, int64_t count) {
                  const bool negative = mirror && multiplier_at(o, t, i) < 0;
                  const int64_t there = o < w.outputs ? w.inputs - i : 0;
                  for (int64_t u = 0; u < count; u++) {
                    const int code = u < there ? codes.at(o, t * w.inputs + i + u) : 0;
                    if (w.bits == 8) {
                      to[u] = (uint8_t)(code + k.carrier_lift);
                      continue;
                    }
                    const int nibble = code + COD_WEIGHT_OFFSET;
                    to[u] |= (uint8_t)((negative && u < there ? 15 - nibble : nibble) << shift);
                  }
                });
      const int64_t runs = runs_of(w_);
      for (int64_t r = 0; r < runs && w_.multiplier_bytes; r++)
        for (int64_t j = 0; j < w_.columns; j++)
          w_.multiplier[((p * w_.taps + tap) * runs + r) * w_.columns + j] =
              (int8_t)multiplier_at(p * w_.columns + j, tap, r * w_.run);
    }
    for (int64_t j = 0; j < w_.columns && p * w_.columns + j < w_.outputs; j++)
      w_.factor[p * w_.columns + j] = factor_[p * w_.columns + j];
  }

 private:
  // Packs the units of a tap that are whole, four nibbles at once, which is most of what there is
  // to pack; returns the input that comes next. None where an output or a byte is not whole.
  int64_t whole_units(int64_t p, int64_t tap, bool mirror) const {
    const auto &k = kernels();
    const int64_t unit = k.carrier_unit, half = k.carrier_pair, columns = w_.columns;
    const int64_t first = p * columns, whole = w_.inputs / unit * unit;
    const uint8_t *rows[kMostColumns];
    if (w_.bits == 8 || columns > kMostColumns || columns * unit % (2 * half) ||
        (unit != 4 && unit != 8) || first + columns > w_.outputs)
      return 0;
    for (int64_t j = 0; j < columns; j++) {
      rows[j] = codes_.pairs(first + j, tap * w_.inputs);
      if (!rows[j]) return 0;
    }
    uint8_t *to = w_.packed + p * w_.panel_bytes + tap * (w_.panel_bytes / w_.taps);
    uint32_t lift[kMostColumns];  // what adds the offset, and inverts
    for (int64_t i = 0, end; i < whole; i = end) {
      end = w_.group ? std::min(whole, i + w_.group) : whole;
      for (int64_t j = 0; j < columns; j++)
        lift[j] = mirror && multiplier_at(first + j, tap, i) < 0 ? 0x07070707 : 0x08080808;
      to = (unit == 4 ? units<4> : units<8>)(rows, lift, columns, half, i, end, to);
    }
    return whole;
  }
  int multiplier_at(int64_t o, int64_t t, int64_t i) const {
    if (!multiplier_ || o >= w_.outputs || i >= w_.inputs) return 1;
    return multiplier_[(o * w_.taps + t) * groups_of(w_) + (w_.group ? i / w_.group : 0)];
  }

  const Source &codes_;
  const int8_t *multiplier_;
  const float *factor_;
  const cod_carrier_weight &w_;
};

template <typename Source>
int32_t pack(const Source &codes, const int8_t *multiplier, int64_t multiplier_count,
             const float *factor, int64_t factor_count, const cod_carrier_weight &w,
             int32_t threads) {
  if (!factor || (multiplier != nullptr) != (w.multiplier_bytes > 0) || factor_count < w.outputs ||
      (multiplier && !cod::fills(multiplier_count, w.outputs, w.taps, groups_of(w))) ||
      !multipliers_fit(multiplier, w) || !codes.fit(w))
    return COD_BAD_ARGUMENT;
  const Packer<Source> packer(codes, multiplier, factor, w);
  cod::parallel_for(w.panels, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; p++) packer.panel(p);
  });
  return COD_OK;
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
  if (inputs > COD_LONGEST_SUM || taps > COD_LONGEST_SUM || w->depth > COD_LONGEST_SUM / taps ||
      outputs > cod::kMostOutputs)
    return COD_BAD_ARGUMENT;
  w->run = inputs <= 16 ? (int32_t)w->depth : group % 32 ? 16 : 32;
  w->panels = (outputs + w->columns - 1) / w->columns;
  w->panel_bytes = taps * w->depth * w->columns * bits / 8;
  w->packed_bytes = w->panels * w->panel_bytes;
  w->multiplier_bytes = multiplied ? w->panels * taps * runs_of(*w) * w->columns : 0;
  w->factor_count = w->panels * w->columns;
  return COD_OK;
}

int32_t cod_carrier_weight_pack(const int8_t *codes, int64_t code_count, const int8_t *multiplier,
                                int64_t multiplier_count, const float *factor, int64_t factor_count,
                                cod_carrier_weight *w, int32_t threads) try {
  if (!codes || !usable(w) || !cod::fills(code_count, w->outputs, w->taps, w->inputs))
    return COD_BAD_ARGUMENT;
  return pack(Bytes{codes, w->taps * w->inputs}, multiplier, multiplier_count, factor, factor_count,
              *w, threads);
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}

int32_t cod_carrier_weight_pack_nibbles(const uint8_t *nibbles, int64_t byte_count,
                                        const int8_t *multiplier, int64_t multiplier_count,
                                        const float *factor, int64_t factor_count,
                                        cod_carrier_weight *w, int32_t threads) try {
  if (!nibbles || !usable(w) || !cod::fills(byte_count, w->outputs, parts(w->taps * w->inputs, 2)))
    return COD_BAD_ARGUMENT;
  return pack(Nibbles{nibbles, w->taps * w->inputs}, multiplier, multiplier_count, factor,
              factor_count, *w, threads);
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}

int32_t cod_carrier_weight_unpack(const cod_carrier_weight *weight, int8_t *codes,
                                  int64_t code_count, int8_t *multiplier, int64_t multiplier_count,
                                  float *factor, int64_t factor_count) {
  if (!usable(weight) || !codes || !factor ||
      (multiplier != nullptr) != (weight->multiplier_bytes > 0) ||
      !cod::fills(code_count, weight->outputs, weight->taps, weight->inputs) ||
      (multiplier &&
       !cod::fills(multiplier_count, weight->outputs, weight->taps, groups_of(*weight))) ||
      factor_count < weight->outputs)
    return COD_BAD_ARGUMENT;
  const cod_carrier_weight &w = *weight;
  const auto &k = kernels();
  const int64_t runs = runs_of(w), groups = groups_of(w);
  const auto multiplier_at = [&](int64_t o, int64_t t, int64_t i) {
    const int64_t panel = o / w.columns;
    return w.multiplier[((panel * w.taps + t) * runs + i / w.run) * w.columns + o % w.columns];
  };
  for (int64_t p = 0; p < w.panels; p++)
    for (int64_t tap = 0; tap < w.taps; tap++)
      each_unit(w, p, tap, 0,
                [&](uint8_t *from, int shift, int64_t o, int64_t t, int64_t i, int64_t count) {
                  if (o >= w.outputs) return;
                  const bool negative =
                      multiplier && k.carrier_mirror && i < w.inputs && multiplier_at(o, t, i) < 0;
                  int8_t *to = codes + (o * w.taps + t) * w.inputs + i;
                  for (int64_t u = 0; u < std::min(count, w.inputs - i); u++) {
                    const int nibble = from[u] >> shift & 15;
                    to[u] = w.bits == 8
                                ? (int8_t)(uint8_t)(from[u] - k.carrier_lift)
                                : (int8_t)((negative ? 15 - nibble : nibble) - COD_WEIGHT_OFFSET);
                  }
                });
  for (int64_t o = 0; o < w.outputs; o++) {
    factor[o] = w.factor[o];
    for (int64_t t = 0; t < w.taps && multiplier; t++)
      for (int64_t g = 0; g < groups; g++)
        multiplier[(o * w.taps + t) * groups + g] = multiplier_at(o, t, g * w.group);
  }
  return COD_OK;
}

}  // extern "C"
