// Products of carriers: one exact sum of signed bytes for every scheme. Linear is a convolution
// with one tap; a k x k kernel reads its rows through pointers, tap by tap. Weights stay nibbles
// and multipliers in memory and are expanded panel by panel, for a block of rows at once.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <vector>

#include "aligned.h"
#include "carrier_weight.h"
#include "geometry.h"

namespace {

using cod::is_direct;
using cod::kernels;
using cod::runs_of;
using cod::usable;

// Carriers of a block of rows and one expanded panel stay in the second cache. Weights are expanded
// once for a block.
constexpr int64_t kNear = 768 * 1024, kLeastNear = 192 * 1024;
constexpr int64_t kFewestRows = 48, kMostRows = 1152;
constexpr int64_t kTile = 6;  // rows of a tile, of most sets: loops of so many need no counter

int64_t whole_lines(int64_t bytes) { return (bytes + 127) / 128 * 128; }

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
    cod::parallel_for(rows, std::max<int64_t>((1 << 16) / w.depth, 1), threads,
                      [&](int64_t first, int64_t last) {
                        kernels().carrier_sums(x.data + first * x.stride, x.stride, last - first,
                                               w.depth, w.run, &all[first * each]);
                      });
  }
};

class Product {
 public:
  Product(const cod_carrier &x, const cod_geometry &g, const cod_carrier_weight &w,
          const cod_output &y, const cod::Joined &joined, const Sums &sums)
      : k_(kernels()), x_(x), g_(g), w_(w), y_(y), joined_(joined), sums_(sums) {
    rows_ = g.batch * g.out_h * g.out_w;
    direct_ = is_direct(g), summed_ = sums.each && !k_.carrier_lift;
    const int64_t mr = k_.carrier_rows;
    const int64_t near = std::max(kNear - w.taps * w.depth * w.columns, kLeastNear);
    // sets that pack rows hold every tap of them
    const int64_t row_bytes = k_.carrier_pack ? w.depth * w.taps : w.depth;
    block_ = std::min(std::max(near / row_bytes, kFewestRows), kMostRows);
    const int64_t count = (rows_ + block_ - 1) / block_;
    block_ = ((rows_ + count - 1) / count + mr - 1) / mr * mr;  // of about the same size
    zeros_.assign((size_t)w.depth, 0);
    zero_sums_.assign((size_t)std::max<int64_t>(sums.each, 1), 0);
    for (int64_t t = 0; t < w.taps && !direct_; t++) taps_.emplace_back(g, t);
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
    const int64_t wide =
        w_.multiplier_bytes ? whole_lines(w_.taps * runs * nr * (int64_t)sizeof(int32_t)) : 0;
    Block own(tiles, mr, w_.taps, summed_ ? sums_.each : 0);
    auto *memory = reinterpret_cast<uint8_t *>(
        cod::scratch((bytes + rows + wide + own.bytes) / (int64_t)sizeof(float)));
    if (!memory) return false;
    auto *packed_rows = reinterpret_cast<int8_t *>(memory + bytes);
    auto *multipliers = reinterpret_cast<int32_t *>(memory + bytes + rows);
    own.place_in(memory + bytes + rows + wide);
    alignas(64) float bias[cod::kMaxLanes];
    if (k_.carrier_begin) k_.carrier_begin();
    int64_t ready = -1, count = 0;
    for (int64_t item = first; item < last; item++) {
      const int64_t begin = item / cuts * block_, cut = item % cuts;
      const int64_t end = std::min(begin + block_, rows_);
      cod::CarrierTile tile{};
      tile.depth = w_.depth, tile.run = w_.run, tile.bytes = w_.bits == 8;
      tile.stride = y_.row_stride, tile.activation = y_.activation;
      tile.added_stride = joined_.added_stride;
      if (ready != begin) {
        ready = begin, count = point(begin, end, own);
        for (int64_t at = 0; begin + at * mr < end && packed; at++)
          k_.carrier_pack(&own.x[at * pointers], count, w_.depth, packed_rows + at * packed);
      }
      for (int64_t p = cut * w_.panels / cuts; p < (cut + 1) * w_.panels / cuts; p++) {
        const int64_t o = p * nr;
        expand(p, count, own, memory, multipliers, tile);
        tile.columns = (int)std::min(w_.outputs - o, nr);
        tile.factor = w_.factor + o;
        if (joined_.gain) tile.gain = joined_.gain + o;
        if (y_.bias) {
          std::memset(bias, 0, sizeof bias);
          std::memcpy(bias, y_.bias + o, (size_t)tile.columns * sizeof(float));
          tile.bias = bias;
        }
        for (int64_t at = 0; begin + at * mr < end; at++) {
          const int64_t row = begin + at * mr;
          tile.x = &own.x[at * pointers], tile.totals = &own.totals[at * mr];
          tile.sums = summed_ ? &own.sums[at * pointers] : nullptr;
          tile.places = &own.places[at * w_.taps], tile.taps = own.counts[at];
          tile.packed = packed_rows + at * packed;
          tile.unit = &own.unit[at * mr];
          tile.y = y_.data + row * y_.row_stride + o;
          tile.rows = (int)std::min(end - row, mr);
          if (joined_.added) tile.added = joined_.added + row * joined_.added_stride + o;
          fetch(tile);
          k_.carrier_tile(tile);
        }
      }
    }
    if (k_.carrier_end) k_.carrier_end();
    return true;
  }

 private:
  // Asks for the lines that a tile writes and adds, while its sums take their time.
  static void fetch(const cod::CarrierTile &tile) {
    for (int64_t r = 0; r < tile.rows; r++)
      for (int64_t j = 0; j < tile.columns; j += 16) {
        __builtin_prefetch(tile.y + r * tile.stride + j, 1);
        if (tile.added) __builtin_prefetch(tile.added + r * tile.added_stride + j);
      }
  }

  // Rows of a block, tile by tile, and the taps that any of them reads; in scratch memory.
  struct Block {
    const int8_t **x;
    const int32_t **sums;  // of sets that need those of every tap
    int32_t *totals;       // of sets that lift weights
    int32_t *own_sums;     // of rows that are read once
    float *unit;
    int64_t *place, *used;
    int32_t *places, *counts;  // of each tile: where the weights of its taps lie
    int64_t bytes = 0;

    Block(int64_t tiles, int64_t mr, int64_t taps, int64_t each)
        : rows_(tiles * mr), tiles_(tiles), taps_(taps), each_(each) {
      place_in(nullptr);
    }
    // Without memory: how many bytes it takes.
    void place_in(uint8_t *memory) {
      bytes = 0;
      take(memory, x, rows_ * taps_), take(memory, sums, each_ ? rows_ * taps_ : 0);
      take(memory, totals, rows_), take(memory, own_sums, rows_ * each_);
      take(memory, unit, rows_), take(memory, place, taps_), take(memory, used, taps_);
      take(memory, places, tiles_ * taps_), take(memory, counts, tiles_);
    }

   private:
    template <typename T>
    void take(uint8_t *memory, T *&to, int64_t count) {
      to = memory ? reinterpret_cast<T *>(memory + bytes) : nullptr;
      bytes += whole_lines(count * (int64_t)sizeof(T));
    }
    int64_t rows_, tiles_, taps_, each_;
  };

  // Where row i of a block begins in lists of [tiles][taps][rows of a tile].
  int64_t listed(int64_t i) const {
    return i / k_.carrier_rows * w_.taps * k_.carrier_rows + i % k_.carrier_rows;
  }

  // Points to the rows [begin, end); returns how many taps are used. Taps that lie in the padding
  // for all of them (wide dilations on small maps) are left out, the others get places without
  // gaps.
  int64_t point(int64_t begin, int64_t end, Block &own) const {
    const int64_t mr = k_.carrier_rows, whole = (end - begin + mr - 1) / mr * mr;
    int64_t count = 0;
    if (direct_) {
      count = 1;
      point_directly(begin, end - begin, own);
    } else {
      std::fill_n(own.place, w_.taps, -1);
      if (lifted()) std::fill_n(own.totals, end - begin, 0);
      over_lines(begin, end, [&](const Segment &s) {
        for (int64_t t = 0; t < w_.taps; t++)
          if (s.inside(taps_[t])) own.place[t] = 0;
      });
      for (int64_t t = 0; t < w_.taps; t++)
        if (own.place[t] >= 0) own.place[t] = count, own.used[count++] = t;
      over_lines(begin, end, [&](const Segment &s) { point_line(s, s.row - begin, own); });
    }
    for (int64_t i = end - begin; i < whole; i++) {
      own.unit[i] = 0.0f, own.totals[i] = 0;
      for (int64_t t = 0; t < count; t++) set(own, listed(i) + t * mr, -1);
    }
    for (int64_t tile = 0; tile * mr < whole; tile++) keep_taps(tile, count, own);
    return count;
  }

  bool lifted() const { return sums_.each && !summed_; }

  void set(Block &own, int64_t at, int64_t from) const {
    own.x[at] = from < 0 ? zeros_.data() : x_.data + from * x_.stride;
    if (summed_)
      own.sums[at] =
          from < 0 || sums_.all.empty() ? zero_sums_.data() : &sums_.all[from * sums_.each];
  }

  // The n rows from `first` on, of one tap.
  void point_directly(int64_t first, int64_t n, Block &own) const {
    const int8_t *x = x_.data + first * x_.stride;
    for (int64_t i = 0; i < n; i++) own.x[i] = x + i * x_.stride;
    if (x_.unit_rows == 1) std::copy_n(x_.unit + first, n, own.unit);
    for (int64_t i = 0; i < n && x_.unit_rows > 1;) {
      const int64_t unit = (first + i) / x_.unit_rows;
      const int64_t stop = std::min(n, (unit + 1) * x_.unit_rows - first);
      for (; i < stop; i++) own.unit[i] = x_.unit[unit];
    }
    if (!sums_.each) return;
    int32_t *sums = summed_ ? own.own_sums : own.totals;
    k_.carrier_sums(x, x_.stride, n, w_.depth, w_.run, sums);
    for (int64_t i = 0; i < n && summed_; i++) own.sums[i] = sums + i * sums_.each;
  }

  // What a tap reads: an input line and column away from the output's, by output columns inside.
  struct Tap {
    int64_t down, right, first, last;
    Tap(const cod_geometry &g, int64_t t)
        : down(t / g.kernel_w * g.dilation_h - g.pad_h),
          right(t % g.kernel_w * g.dilation_w - g.pad_w),
          first(columns(-right, g)),
          last(std::max(columns(g.in_w - right, g), first)) {}
    // How many output columns begin before an input column.
    static int64_t columns(int64_t before, const cod_geometry &g) {
      return before <= 0 ? 0 : std::min<int64_t>((before + g.stride_w - 1) / g.stride_w, g.out_w);
    }
  };

  // Output rows of one line of a map.
  struct Segment {
    const cod_geometry &g;
    int64_t row, image, oy, ox, n;  // row: the first one

    // Which of the rows read a tap, [first, last), and the input row that the first one reads.
    struct Reach {
      int64_t first, last, from;
    };
    Reach reach(const Tap &tap) const {
      const int64_t y = oy * g.stride_h + tap.down;
      if (y < 0 || y >= g.in_h) return {0, 0, 0};
      const int64_t first = std::min(std::max(tap.first - ox, (int64_t)0), n);
      const int64_t last = std::min(std::max(tap.last - ox, first), n);
      if (first == last) return {0, 0, 0};
      return {first, last, (image * g.in_h + y) * g.in_w + (ox + first) * g.stride_w + tap.right};
    }
    bool inside(const Tap &tap) const {
      const Reach r = reach(tap);
      return r.first < r.last;
    }
  };

  template <typename F>
  void over_lines(int64_t begin, int64_t end, const F &visit) const {
    for (int64_t row = begin; row < end;) {
      const int64_t ox = row % g_.out_w, line = row / g_.out_w;
      const int64_t n = std::min(end - row, g_.out_w - ox);
      visit(Segment{g_, row, line / g_.out_h, line % g_.out_h, ox, n});
      row += n;
    }
  }

  // Every `step`-th one, to n of them; may wrap.
  static void add(int32_t *to, const int32_t *from, int64_t step, int64_t n) {
    const auto sum = [](int32_t a, int32_t b) { return (int32_t)((uint32_t)a + (uint32_t)b); };
    for (int64_t i = 0; i < n && step == 1; i++) to[i] = sum(to[i], from[i]);
    for (int64_t i = 0; i < n && step != 1; i++) to[i] = sum(to[i], from[i * step]);
  }

  // Pointers to n rows under one tap, `step` apart from the first inside on; `left` of them belong
  // to the first tile.
  template <typename T>
  void follow(const T **to, const T *from, int64_t step, const T *outside, int64_t n,
              const typename Segment::Reach &r, int64_t left) const {
    const int64_t mr = k_.carrier_rows, skip = (w_.taps - 1) * mr;
    for (int64_t i = 0, stop = left; i < n; stop += mr, to += skip) {  // tile by tile
      stop = std::min(stop, n);
      if (i >= r.first && stop <= r.last && stop - i == kTile) {
#pragma GCC unroll 6
        for (int64_t j = 0; j < kTile; j++) to[j] = from + j * step;
        i = stop, to += kTile, from += kTile * step;
      } else {
        for (; i < stop; i++) {
          const bool inside = i >= r.first && i < r.last;
          *to++ = inside ? from : outside;
          if (inside) from += step;
        }
      }
    }
  }

  void point_line(const Segment &s, int64_t first, Block &own) const {
    const int64_t mr = k_.carrier_rows;
    const int64_t from = s.image * g_.in_h * g_.in_w;
    for (int64_t i = 0; i < s.n; i++) own.unit[first + i] = x_.unit[from / x_.unit_rows];
    for (int64_t t = 0; t < w_.taps; t++) {
      if (own.place[t] < 0) continue;
      const typename Segment::Reach r = s.reach(taps_[t]);
      const int64_t at = listed(first) + own.place[t] * mr, left = mr - first % mr;
      follow(own.x + at, x_.data + r.from * x_.stride, g_.stride_w * x_.stride, zeros_.data(), s.n,
             r, left);
      const int64_t each = sums_.all.empty() ? 0 : sums_.each;
      const int32_t *sums = each ? &sums_.all[(size_t)(r.from * each)] : zero_sums_.data();
      if (summed_) follow(own.sums + at, sums, g_.stride_w * each, zero_sums_.data(), s.n, r, left);
      if (lifted()) add(own.totals + first + r.first, sums, g_.stride_w, r.last - r.first);
      // of one tap, whose padding has no unit of its own: that of its image
      for (int64_t i = r.first; i < r.last && w_.taps == 1; i++)
        own.unit[first + i] = x_.unit[(r.from + (i - r.first) * g_.stride_w) / x_.unit_rows];
    }
  }

  // Leaves out the taps that lie in the padding for all rows of a tile. Sets that pack rows take
  // the weights as they lie.
  void keep_taps(int64_t tile, int64_t count, Block &own) const {
    const int64_t mr = k_.carrier_rows;
    const int8_t **x = &own.x[tile * w_.taps * mr];
    const int32_t **sums = summed_ ? &own.sums[tile * w_.taps * mr] : nullptr;
    int32_t kept = 0;
    for (int64_t t = 0; t < count; t++) {
      bool read = direct_ || k_.carrier_pack;
      for (int64_t r = 0; r < mr && !read; r++) read = x[t * mr + r] != zeros_.data();
      if (!read) continue;
      if (kept < t) std::copy_n(x + t * mr, mr, x + kept * mr);
      if (kept < t && summed_) std::copy_n(sums + t * mr, mr, sums + kept * mr);
      own.places[tile * w_.taps + kept++] = (int32_t)t;
    }
    own.counts[tile] = kept;
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
  const cod::Joined &joined_;
  const Sums &sums_;
  int64_t rows_, block_;
  bool direct_, summed_;  // summed_: the set needs sums under every tap
  std::vector<int8_t> zeros_;
  std::vector<int32_t> zero_sums_;
  std::vector<Tap> taps_;
};

}  // namespace

int32_t cod::carrier_conv(const cod_carrier &x, const cod_geometry &g, const cod_carrier_weight &w,
                          const cod_output &y, const Joined &joined, int32_t threads) {
  const int64_t rows = g.batch * g.out_h * g.out_w;
  if (rows * w.taps * w.depth * w.outputs < kWorthSharing) threads = 1;
  const Sums sums(x, g.batch * g.in_h * g.in_w, w, is_direct(g), threads);
  const Product product(x, g, w, y, joined, sums);
  const int64_t blocks = product.blocks(), spread = 3 * (int64_t)threads;
  int64_t cuts = threads > 1 && blocks < spread ? (spread + blocks - 1) / blocks : 1;
  cuts = std::min(cuts, w.panels);
  std::atomic<bool> failed{false};
  parallel_for(blocks * cuts, 1, threads, [&](int64_t first, int64_t last) {
    if (!product.run(first, last, cuts)) failed = true;
  });
  return failed ? COD_NO_MEMORY : COD_OK;
}

extern "C" int32_t cod_carrier_conv(const cod_carrier *x, const cod_geometry *geometry,
                                    const cod_carrier_weight *w, const cod_output *y,
                                    int32_t threads) try {
  if (!x || !usable(w) || !y || !cod::fits(geometry) || x->unit_rows < 1 || x->unit_stride ||
      x->stride < w->depth || y->activation == COD_ACT_GATED_GELU)
    return COD_BAD_ARGUMENT;
  const cod_geometry &g = *geometry;
  if (w->taps != (int64_t)g.kernel_h * g.kernel_w) return COD_BAD_ARGUMENT;
  const int64_t rows = g.batch * g.out_h * g.out_w;
  if (rows == 0) return COD_OK;
  const bool padded = w->taps > 1 || g.pad_h > 0 || g.pad_w > 0;
  const int64_t read = g.batch * g.in_h * g.in_w;
  if (read == 0 || (padded && x->unit_rows != g.in_h * g.in_w) || (is_direct(g) && rows != read) ||
      !cod::holds(*x, read, w->depth) || !cod::holds(*y, rows, w->outputs, w->outputs))
    return COD_BAD_ARGUMENT;
  return cod::carrier_conv(*x, g, *w, *y, {}, threads);
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}
