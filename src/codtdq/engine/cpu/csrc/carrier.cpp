// Products of carriers: one exact sum of signed bytes for every scheme. Linear is a convolution
// with one tap; a k x k kernel reads its rows through pointers, tap by tap. Weights stay nibbles
// and multipliers in memory and are expanded panel by panel, for a block of rows at once.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "aligned.h"
#include "geometry.h"
#include "kernels.h"

namespace {

using cod::kernels;
using cod::Walk;

constexpr int64_t kBlockBytes = 192 * 1024;  // carriers of a block of rows: half a second cache
constexpr int64_t kFewestRows = 48, kMostRows = 384;

int64_t whole_lines(int64_t bytes) { return (bytes + 127) / 128 * 128; }

constexpr int64_t kMostOutputs = (int64_t)1 << 32;  // bytes of panels do not overflow

int64_t runs_of(const cod_carrier_weight &w) { return w.depth / w.run; }

int64_t groups_of(const cod_carrier_weight &w) {
  return w.group ? cod::parts(w.inputs, w.group) : 1;
}

// Aligned loads read the panels.
bool usable(const cod_carrier_weight *w) {
  cod_carrier_weight own;  // what the set in use makes of these sizes
  return w && w->packed && w->factor && (uintptr_t)w->packed % 64 == 0 &&
         (uintptr_t)w->factor % 64 == 0 && (w->multiplier || !w->multiplier_bytes) &&
         cod_carrier_weight_describe(w->outputs, w->taps, w->inputs, w->bits, w->group,
                                     w->multiplier_bytes != 0, &own) == COD_OK &&
         w->columns == own.columns && w->depth == own.depth && w->run == own.run &&
         w->group == own.group && w->panels == own.panels && w->panel_bytes == own.panel_bytes &&
         w->packed_bytes == own.packed_bytes && w->multiplier_bytes == own.multiplier_bytes &&
         w->factor_count == own.factor_count;
}

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
    groups_ = groups_of(w);
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
  const int64_t groups = groups_of(w);
  for (int64_t i = 0; multiplier && i < w.outputs * w.taps * groups; i++)
    if (!multiplier[i] || multiplier[i] < -COD_LARGEST_MULTIPLIER ||
        multiplier[i] > COD_LARGEST_MULTIPLIER)
      return false;
  return true;
}

// Sums of the carriers of every input row, which some sets need. Where a row is read once, its
// block takes them, when it reads the row for the first time.
struct Sums {
  int64_t each;
  std::vector<int32_t> all;
  Sums(const cod_carrier &x, int64_t rows, const cod_carrier_weight &w, bool direct, int threads)
      : each(kernels().carrier_sum_count(w.depth, w.run)) {
    if (w.bits == 8 && !kernels().carrier_lift) each = 0;
    if (!each || direct) return;
    all.resize((size_t)(rows * each));
    cod::parallel_for(
        rows, std::max<int64_t>((1 << 16) / w.depth, 1), threads, [&](int64_t first, int64_t last) {
          for (int64_t r = first; r < last; r++)
            kernels().carrier_sums(x.data + r * x.stride, w.depth, w.run, &all[r * each]);
        });
  }
};

class Product {
 public:
  Product(const cod_carrier &x, const cod_geometry &g, const cod_carrier_weight &w,
          const cod_output &y, const Sums &sums)
      : k_(kernels()), x_(x), g_(g), w_(w), y_(y), sums_(sums) {
    rows_ = g.batch * g.out_h * g.out_w;
    direct_ = cod::is_direct(g);
    const int64_t mr = k_.carrier_rows;
    block_ = std::min(std::max(kBlockBytes / (w.depth * w.taps), kFewestRows), kMostRows);
    block_ = (block_ + mr - 1) / mr * mr;
    zeros_.assign((size_t)w.depth, 0);
    zero_sums_.assign((size_t)std::max<int64_t>(sums.each, 1), 0);
  }

  int64_t blocks() const { return (rows_ + block_ - 1) / block_; }

  // Panels in `cuts` parts; false: no memory.
  bool run(int64_t first, int64_t last, int64_t cuts) const {
    const int64_t mr = k_.carrier_rows, nr = k_.carrier_columns, pointers = w_.taps * mr;
    const int64_t tiles = block_ / mr, runs = runs_of(w_);
    const int64_t packed = k_.carrier_pack ? k_.carrier_packed(w_.taps, w_.depth) : 0;
    // a set that packs rows may read as many values of depth as it packs: zeros meet what is left
    // there from other calls
    const int64_t depth = std::max(packed / mr, w_.taps * w_.depth);
    const int64_t bytes = whole_lines(depth * nr), rows = whole_lines(tiles * packed);
    const int64_t wide = w_.multiplier_bytes ? w_.taps * runs * nr * (int64_t)sizeof(int32_t) : 0;
    auto *memory =
        reinterpret_cast<uint8_t *>(cod::scratch((bytes + rows + wide) / (int64_t)sizeof(float)));
    if (!memory) return false;
    auto *packed_rows = reinterpret_cast<int8_t *>(memory + bytes);
    auto *multipliers = reinterpret_cast<int32_t *>(memory + bytes + rows);
    Block own((size_t)(tiles * pointers), (size_t)block_, (size_t)w_.taps, (size_t)sums_.each);
    alignas(64) float bias[cod::kMaxLanes];
    if (k_.carrier_begin) k_.carrier_begin();
    for (int64_t item = first; item < last; item++) {
      const int64_t begin = item / cuts * block_, cut = item % cuts;
      const int64_t end = std::min(begin + block_, rows_);
      const int64_t count = point(begin, end, own);
      cod::CarrierTile tile{};
      tile.taps = count, tile.depth = w_.depth, tile.run = w_.run, tile.bytes = w_.bits == 8;
      tile.stride = y_.row_stride;
      if (packed)
        for (int64_t at = 0; begin + at * mr < end; at++)
          k_.carrier_pack(&own.x[at * pointers], count, w_.depth, packed_rows + at * packed);
      for (int64_t p = cut * w_.panels / cuts; p < (cut + 1) * w_.panels / cuts; p++) {
        const int64_t o = p * nr;
        expand(p, count, own, memory, multipliers, tile);
        tile.columns = (int)std::min(w_.outputs - o, nr);
        tile.factor = w_.factor + o;
        if (y_.bias) {
          std::memset(bias, 0, sizeof bias);
          std::memcpy(bias, y_.bias + o, (size_t)tile.columns * sizeof(float));
          tile.bias = bias;
        }
        for (int64_t at = 0; begin + at * mr < end; at++) {
          const int64_t row = begin + at * mr;
          tile.x = &own.x[at * pointers], tile.sums = &own.sums[at * pointers];
          tile.packed = packed_rows + at * packed;
          tile.unit = &own.unit[at * mr];
          tile.y = y_.data + row * y_.row_stride + o;
          tile.rows = (int)std::min(end - row, mr);
          for (int64_t r = 0; r < tile.rows; r++)
            for (int64_t j = 0; j < tile.columns; j += 16)
              __builtin_prefetch(tile.y + r * tile.stride + j, 1);
          k_.carrier_tile(tile);
          if (y_.activation != COD_ACT_NONE)
            for (int64_t r = 0; r < tile.rows; r++)
              k_.activate(tile.y + r * tile.stride, tile.columns, y_.activation);
        }
      }
    }
    if (k_.carrier_end) k_.carrier_end();
    return true;
  }

 private:
  // Rows of a block, tile by tile, and the taps that any of them reads.
  struct Block {
    std::vector<const int8_t *> x;
    std::vector<const int32_t *> sums;
    std::vector<float> unit;
    std::vector<int64_t> place, used;
    std::vector<int32_t> own_sums;  // of rows that are read once
    Block(size_t pointers, size_t rows, size_t taps, size_t each)
        : x(pointers), sums(pointers), unit(rows), place(taps), used(taps), own_sums(rows * each) {}
  };

  // Points to the rows [begin, end); returns how many taps are used. Taps that lie in the padding
  // for all of them (wide dilations on small maps) are left out, the others get places without
  // gaps.
  int64_t point(int64_t begin, int64_t end, Block &own) const {
    const int64_t mr = k_.carrier_rows, taps = w_.taps;
    int64_t count = direct_ ? 1 : 0;
    std::fill(own.place.begin(), own.place.end(), direct_ ? 0 : -1);
    if (!direct_) {
      Walk walk(g_, begin);
      for (int64_t row = begin; row < end && count < taps; row++, walk.next())
        walk.taps([&](int64_t t, int64_t from) {
          if (from >= 0 && own.place[t] < 0) own.place[t] = 0, count++;
        });
      count = 0;
      for (int64_t t = 0; t < taps; t++)
        if (own.place[t] >= 0) own.place[t] = count, own.used[count++] = t;
    }
    const auto set = [&](int64_t at, int64_t from) {
      own.x[at] = from < 0 ? zeros_.data() : x_.data + from * x_.stride;
      own.sums[at] =
          from < 0 || sums_.all.empty() ? zero_sums_.data() : &sums_.all[from * sums_.each];
    };
    Walk walk(g_, begin);
    for (int64_t i = 0; i < (end - begin + mr - 1) / mr * mr; i++, walk.next()) {
      const int64_t at = i / mr * taps * mr + i % mr;
      own.unit[i] = 0.0f;
      if (begin + i >= end) {
        for (int64_t t = 0; t < count; t++) set(at + t * mr, -1);
      } else if (direct_) {
        set(at, begin + i);
        if (sums_.each) {
          int32_t *sums = &own.own_sums[i * sums_.each];
          k_.carrier_sums(own.x[at], w_.depth, w_.run, sums);
          own.sums[at] = sums;
        }
        own.unit[i] = x_.unit[(begin + i) / x_.unit_rows];
      } else {
        // of one tap, whose padding has no unit of its own: that of its image
        int64_t source = walk.b * g_.in_h * g_.in_w;
        walk.taps([&](int64_t t, int64_t from) {
          if (own.place[t] >= 0) set(at + own.place[t] * mr, from);
          if (from >= 0) source = from;
        });
        own.unit[i] = x_.unit[source / x_.unit_rows];
      }
    }
    return count;
  }

  void expand(int64_t p, int64_t count, const Block &own, uint8_t *bytes, int32_t *wide,
              cod::CarrierTile &tile) const {
    const int64_t nr = k_.carrier_columns, runs = runs_of(w_), tap_bytes = w_.panel_bytes / w_.taps;
    const uint8_t *packed = w_.packed + p * w_.panel_bytes;
    const int8_t *m = w_.multiplier_bytes ? w_.multiplier + p * w_.taps * runs * nr : nullptr;
    const bool whole = direct_ || count == w_.taps;
    tile.w = bytes, tile.multipliers = m ? wide : nullptr;
    if (w_.bits == 8) {
      if (whole && !k_.carrier_pack) {
        tile.w = packed;
        return;
      }
      for (int64_t t = 0; t < count; t++)
        std::memcpy(bytes + t * tap_bytes, packed + (whole ? t : own.used[t]) * tap_bytes,
                    (size_t)tap_bytes);
      return;
    }
    if (whole) return k_.carrier_expand(packed, m, w_.taps * runs, w_.run, bytes, wide);
    for (int64_t t = 0; t < count; t++)
      k_.carrier_expand(packed + own.used[t] * tap_bytes, m ? m + own.used[t] * runs * nr : nullptr,
                        runs, w_.run, bytes + 2 * t * tap_bytes, wide + t * runs * nr);
  }

  const cod::Kernels &k_;
  const cod_carrier &x_;
  const cod_geometry &g_;
  const cod_carrier_weight &w_;
  const cod_output &y_;
  const Sums &sums_;
  int64_t rows_, block_;
  bool direct_;
  std::vector<int8_t> zeros_;
  std::vector<int32_t> zero_sums_;
};

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
      outputs > kMostOutputs)
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
                                cod_carrier_weight *w, int32_t threads) {
  if (!codes || !factor || !usable(w) || (multiplier != nullptr) != (w->multiplier_bytes > 0) ||
      !cod::fills(code_count, w->outputs, w->taps, w->inputs) || factor_count < w->outputs ||
      (multiplier && !cod::fills(multiplier_count, w->outputs, w->taps, groups_of(*w))) ||
      !codes_fit(codes, multiplier, *w))
    return COD_BAD_ARGUMENT;
  const Packer packer(codes, multiplier, factor, *w);
  cod::parallel_for(w->panels, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; p++) packer.panel(p);
  });
  return COD_OK;
}

int32_t cod_carrier_conv(const cod_carrier *x, const cod_geometry *geometry,
                         const cod_carrier_weight *w, const cod_output *y, int32_t threads) {
  if (!x || !usable(w) || !y || !cod::fits(geometry) || x->unit_rows < 1 || x->unit_stride ||
      x->stride < w->depth || y->activation == COD_ACT_GATED_GELU)
    return COD_BAD_ARGUMENT;
  const cod_geometry &g = *geometry;
  if (w->taps != (int64_t)g.kernel_h * g.kernel_w) return COD_BAD_ARGUMENT;
  const int64_t rows = g.batch * g.out_h * g.out_w;
  if (rows == 0) return COD_OK;
  const bool padded = w->taps > 1 || g.pad_h > 0 || g.pad_w > 0;
  const int64_t read = g.batch * g.in_h * g.in_w;
  if (read == 0 || (padded && x->unit_rows != g.in_h * g.in_w) ||
      (cod::is_direct(g) && rows != read) || !cod::holds(*x, read, w->depth) ||
      !cod::holds(*y, rows, w->outputs, w->outputs))
    return COD_BAD_ARGUMENT;
  if (rows * w->taps * w->depth * w->outputs < cod::kWorthSharing) threads = 1;
  const Sums sums(*x, g.batch * g.in_h * g.in_w, *w, cod::is_direct(g), threads);
  const Product product(*x, g, *w, *y, sums);
  const int64_t blocks = product.blocks(), spread = 3 * (int64_t)threads;
  int64_t cuts = threads > 1 && blocks < spread ? (spread + blocks - 1) / blocks : 1;
  cuts = std::min(cuts, w->panels);
  std::atomic<bool> failed{false};
  cod::parallel_for(blocks * cuts, 1, threads, [&](int64_t first, int64_t last) {
    if (!product.run(first, last, cuts)) failed = true;
  });
  return failed ? COD_NO_MEMORY : COD_OK;
}

}  // extern "C"
