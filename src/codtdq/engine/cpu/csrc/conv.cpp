// Matrix products on codes: Linear is a convolution with one tap. A k x k kernel reads its rows
// through pointers, tap by tap; no im2col matrix exists.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "aligned.h"
#include "geometry.h"
#include "kernels.h"

namespace {

using cod::kernels;

using cod::Aligned;
using cod::kWorthSharing;
using cod::Walk;

constexpr int64_t kRowBlock = 96;  // rows that share one unpacked panel

// Rows of scales: one, or factors and then one per tap and group.
int64_t scales_of_panel(const cod_weight &w) { return w.weight_group ? 1 + w.taps * w.groups : 1; }

// Whether 1.5 * 2^23 times these scales is exact and finite, and no sum of a group exceeds 2^22.
bool exact_scales(const float *scales, int64_t count, int32_t group) {
  uint32_t digits = 0, largest = 0, bits;
  for (int64_t i = 0; i < count; i++) {
    std::memcpy(&bits, scales + i, sizeof bits);
    digits |= bits;
    largest = std::max(largest, bits & 0x7fffffffu);
  }
  return (digits & 7) == 0 && largest < 0x71800000u /* 2^100 */ && group <= 4096;
}

// Aligned loads read both arrays.
bool usable(const cod_weight *w) {
  return w && w->packed && w->scales && (uintptr_t)w->packed % 64 == 0 &&
         (uintptr_t)w->scales % 64 == 0 && w->columns == kernels().columns;
}

}  // namespace

extern "C" {

int32_t cod_weight_describe(int64_t outputs, int64_t taps, int64_t inputs, int32_t group,
                            int32_t weight_group, cod_weight *w) {
  if (!w || outputs < 1 || taps < 1 || inputs < 1 || group < 4 || group % 4 || weight_group < 0)
    return COD_BAD_ARGUMENT;
  // a weight group must be whole activation groups, or all inputs, to share one integer sum
  if (weight_group > 0 && weight_group % group && weight_group < inputs) return COD_BAD_ARGUMENT;
  *w = cod_weight{};
  const int nr = kernels().columns;
  w->outputs = outputs, w->taps = taps, w->inputs = inputs;
  w->group = group, w->weight_group = weight_group, w->columns = nr;
  w->groups = (inputs + group - 1) / group;
  w->panels = (outputs + nr - 1) / nr;
  w->panel_bytes = taps * w->groups * group * nr / 2;
  w->packed_bytes = w->panels * w->panel_bytes;
  w->scale_count = w->panels * scales_of_panel(*w) * nr;
  return COD_OK;
}

int32_t cod_weight_pack(const int8_t *codes, const float *scale, const float *factor, cod_weight *w,
                        int32_t threads) {
  if (!codes || !scale || !usable(w)) return COD_BAD_ARGUMENT;
  const int64_t nr = w->columns, scales = scales_of_panel(*w), quads = w->groups * w->group / 4;
  const int64_t per_tap =
      w->weight_group > 0 ? (w->inputs + w->weight_group - 1) / w->weight_group : 1;
  // four codes of one output, as nibbles with the offset in the bytes of a word; padding has code
  // 0, that is the offset: its activation codes are zero anyway
  auto four = [&](int64_t o, int64_t t, int64_t i) {
    uint32_t word = 0;
    const int8_t *from = codes + (o * w->taps + t) * w->inputs + i;
    if (o >= w->outputs || i >= w->inputs)
      word = 0;
    else if (i + 4 <= w->inputs)
      std::memcpy(&word, from, 4);
    else
      std::memcpy(&word, from, (size_t)(w->inputs - i));
    constexpr uint32_t kOffsets = COD_WEIGHT_OFFSET * 0x01010101u;
    return ((word & 0x0f0f0f0fu) + kOffsets) & 0x0f0f0f0fu;
  };
  auto pack = [&](int64_t p) {
    uint8_t *to = w->packed + p * w->panel_bytes;
    for (int64_t t = 0; t < w->taps; t++)
      for (int64_t q = 0; q < quads; q++)
        for (int64_t j = 0; j < nr / 2; j++, to += 4) {
          const uint32_t low = four(p * nr + j, t, 4 * q),
                         high = four(p * nr + j + nr / 2, t, 4 * q);
          const uint32_t both = low | high << 4;
          std::memcpy(to, &both, 4);
        }
    for (int64_t j = 0; j < nr && p * nr + j < w->outputs; j++) {
      const int64_t o = p * nr + j;
      if (w->weight_group == 0) {
        w->scales[o] = scale[o];
        continue;
      }
      float *to = w->scales + p * scales * nr + j;
      *to = factor ? factor[o] : 1.0f;
      for (int64_t t = 0; t < w->taps; t++)
        for (int64_t g = 0; g < w->groups; g++)
          *(to += nr) = scale[(o * w->taps + t) * per_tap + g * w->group / w->weight_group];
    }
  };
  cod::parallel_for(w->panels, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; p++) pack(p);
  });
  w->exact = w->weight_group > 0 && exact_scales(scale, w->outputs * w->taps * per_tap, w->group);
  return COD_OK;
}

int32_t cod_conv(const cod_input *x, const cod_geometry *geometry, const cod_weight *w,
                 const cod_output *y, int32_t threads) {
  const auto &k = kernels();
  if (!x || !usable(w) || !y || !cod::fits(geometry)) return COD_BAD_ARGUMENT;
  if (w->taps != (int64_t)geometry->kernel_h * geometry->kernel_w) return COD_BAD_ARGUMENT;
  if (x->code_stride < w->groups * w->group || x->row_groups < w->groups) return COD_BAD_ARGUMENT;
  const int64_t rows = geometry->batch * geometry->out_h * geometry->out_w;
  if (rows == 0) return COD_OK;
  const int64_t taps = w->taps, groups = w->groups, mr = k.rows, nr = k.columns;
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  if (rows * taps * groups * w->group * w->outputs < kWorthSharing) threads = 1;
  const int64_t spread = 3 * (int64_t)threads;
  int64_t cuts = threads > 1 && blocks < spread ? (spread + blocks - 1) / blocks : 1;
  if (cuts > w->panels) cuts = w->panels;
  const int step_stride = x->step_mode ? 1 : 0;
  const bool direct = taps == 1 && geometry->stride_h == 1 && geometry->stride_w == 1 &&
                      geometry->pad_h == 0 && geometry->pad_w == 0;
  std::vector<int8_t> zero_codes((size_t)(groups * w->group), 0);
  std::vector<float> zero_steps((size_t)groups, 0.0f);
  std::vector<int32_t> zero_sums((size_t)groups, 0);
  const bool grouped = w->weight_group > 0;
  const int64_t scales = scales_of_panel(*w);
  std::atomic<bool> failed{false};
  const int64_t tap_bytes = w->panel_bytes / taps;
  auto body = [&](int64_t first, int64_t last) {
    Aligned bytes(2 * w->panel_bytes), tile(mr * nr * (int64_t)sizeof(float));
    Aligned some_scales(grouped ? scales * nr * (int64_t)sizeof(float) : 0);
    if (!bytes.data || !tile.data || !some_scales.data) {
      failed = true;
      return;
    }
    auto *acc = reinterpret_cast<float *>(tile.data);
    const int64_t tiles = (kRowBlock + mr - 1) / mr, pointers = taps * mr;
    std::vector<const int8_t *> xp((size_t)(tiles * pointers));
    std::vector<const float *> sp((size_t)(tiles * pointers));
    std::vector<const int32_t *> cp((size_t)(tiles * pointers));
    std::vector<int64_t> place((size_t)taps), used((size_t)taps);
    for (int64_t item = first; item < last; item++) {
      const int64_t begin = item / cuts * kRowBlock, cut = item % cuts;
      const int64_t end = begin + kRowBlock < rows ? begin + kRowBlock : rows;
      // Taps that lie in the padding for all of these rows (wide dilations on small maps) are left
      // out; the others get places without gaps.
      int64_t count = direct ? 1 : 0;
      std::fill(place.begin(), place.end(), direct ? 0 : -1);
      if (!direct) {
        Walk walk(*geometry, begin);
        for (int64_t row = begin; row < end && count < taps; row++, walk.next())
          walk.taps([&](int64_t t, int64_t from) {
            if (from >= 0 && place[t] < 0) place[t] = 0, count++;
          });
        count = 0;
        for (int64_t t = 0; t < taps; t++)
          if (place[t] >= 0) place[t] = count, used[count++] = t;
      }
      auto point = [&](int64_t at, int64_t from) {
        xp[at] = from < 0 ? zero_codes.data() : x->codes + from * x->code_stride;
        sp[at] = from < 0 ? zero_steps.data() : x->step + from * x->row_groups * step_stride;
        cp[at] = from < 0 ? zero_sums.data() : x->sums + from * x->row_groups;
      };
      Walk walk(*geometry, begin);
      for (int64_t i = 0; i < (end - begin + mr - 1) / mr * mr; i++, walk.next()) {
        const int64_t at = i / mr * pointers + i % mr;
        if (begin + i >= end)
          for (int64_t t = 0; t < count; t++) point(at + t * mr, -1);
        else if (direct)
          point(at, begin + i);
        else
          walk.taps([&](int64_t t, int64_t from) {
            if (place[t] >= 0) point(at + place[t] * mr, from);
          });
      }
      for (int64_t p = cut * w->panels / cuts; p < (cut + 1) * w->panels / cuts; p++) {
        const uint8_t *packed = w->packed + p * w->panel_bytes;
        const float *factor = w->scales + p * scales * nr, *scale = factor + nr;
        if (direct || count == taps) {
          k.unpack(packed, w->panel_bytes, bytes.data);
        } else {
          auto *kept = reinterpret_cast<float *>(some_scales.data);
          for (int64_t t = 0; t < count; t++) {
            k.unpack(packed + used[t] * tap_bytes, tap_bytes, bytes.data + 2 * t * tap_bytes);
            if (grouped)
              std::memcpy(kept + t * groups * nr, scale + used[t] * groups * nr,
                          (size_t)(groups * nr) * sizeof(float));
          }
          if (grouped) scale = kept;
        }
        const int64_t o = p * nr;
        cod::TileInput in{};
        in.w = bytes.data, in.scales = grouped ? scale : nullptr, in.exact = w->exact != 0;
        in.taps = count, in.groups = groups, in.group = w->group;
        in.step_stride = step_stride, in.wide = x->wide != 0;
        cod::Epilogue out{};
        out.stride = y->row_stride, out.acc = acc;
        out.scale = factor, out.bias = y->bias ? y->bias + o : nullptr;
        out.columns = (int)(w->outputs - o < nr ? w->outputs - o : nr);
        for (int64_t tile_at = 0; begin + tile_at * mr < end; tile_at++) {
          const int64_t at = tile_at * pointers, row = begin + tile_at * mr;
          out.y = y->data + row * y->row_stride + o;
          out.rows = (int)(end - row < mr ? end - row : mr);
          in.x = &xp[at], in.steps = &sp[at], in.sums = &cp[at];
          k.tile(in, out);
          if (y->activation != COD_ACT_NONE)
            for (int64_t r = 0; r < out.rows; r++)
              k.activate(out.y + r * out.stride, out.columns, y->activation);
        }
      }
    }
  };
  cod::parallel_for(blocks * cuts, 1, threads, body);
  return failed ? COD_NO_MEMORY : COD_OK;
}

}  // extern "C"
