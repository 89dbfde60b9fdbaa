// Matrix products on codes: Linear is a convolution with one tap. A k x k kernel reads its rows
// through pointers, tap by tap; no im2col matrix exists.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "kernels.h"

struct cod_weight {
  int64_t outputs, taps, inputs, groups;  // groups: activation groups of one tap
  int32_t group;
  bool grouped;                 // a scale for every weight group
  int columns;                  // of a panel; that of the kernels it was packed for
  int64_t panels, panel_bytes;  // packed bytes of a panel
  uint8_t *packed = nullptr;    // [panels][taps][groups][group / 4][columns][4] nibbles
  float *scale = nullptr;       // [panels][columns], or [panels][taps * groups][columns]
  ~cod_weight() {
    std::free(packed);
    std::free(scale);
  }
};

namespace {

using cod::kernels;

template <typename T>
T *aligned_array(int64_t count) {
  const size_t bytes = ((size_t)(count > 0 ? count : 1) * sizeof(T) + 127) / 128 * 128;
  void *memory = std::aligned_alloc(128, bytes);
  if (memory) std::memset(memory, 0, bytes);
  return static_cast<T *>(memory);
}

struct Aligned {
  explicit Aligned(int64_t bytes) : data(aligned_array<uint8_t>(bytes)) {}
  ~Aligned() { std::free(data); }
  Aligned(const Aligned &) = delete;
  uint8_t *data;
};

constexpr int64_t kRowBlock = 96;  // rows that share one unpacked panel

// Which input row a tap of an output row reads, -1 in the padding.
struct Taps {
  const cod_geometry &g;
  int64_t operator()(int64_t row, int64_t tap) const {
    const int64_t ox = row % g.out_w, oy = row / g.out_w % g.out_h, b = row / (g.out_w * g.out_h);
    const int64_t y = oy * g.stride_h - g.pad_h + tap / g.kernel_w * g.dilation_h;
    const int64_t x = ox * g.stride_w - g.pad_w + tap % g.kernel_w * g.dilation_w;
    if (y < 0 || y >= g.in_h || x < 0 || x >= g.in_w) return -1;
    return (b * g.in_h + y) * g.in_w + x;
  }
};

bool fits(const cod_geometry *g) {
  return g && g->batch >= 0 && g->in_h >= 0 && g->in_w >= 0 && g->out_h >= 0 && g->out_w >= 0 &&
         g->kernel_h > 0 && g->kernel_w > 0 && g->stride_h > 0 && g->stride_w > 0 &&
         g->dilation_h > 0 && g->dilation_w > 0 && g->pad_h >= 0 && g->pad_w >= 0;
}

}  // namespace

extern "C" {

cod_weight *cod_weight_new(const int8_t *codes, const float *scale, int64_t outputs, int64_t taps,
                           int64_t inputs, int32_t group, int32_t weight_group) {
  if (!codes || !scale || outputs < 1 || taps < 1 || inputs < 1 || group < 4 || group % 4)
    return nullptr;
  // a weight group must be whole activation groups, or whole columns, to share one integer sum
  if (weight_group > 0 && weight_group % group && weight_group < inputs) return nullptr;
  auto *w = new (std::nothrow) cod_weight;
  if (!w) return nullptr;
  const int nr = kernels().columns;
  w->outputs = outputs, w->taps = taps, w->inputs = inputs, w->group = group;
  w->groups = (inputs + group - 1) / group, w->columns = nr, w->grouped = weight_group > 0;
  w->panels = (outputs + nr - 1) / nr;
  w->panel_bytes = taps * w->groups * group * nr / 2;
  w->packed = aligned_array<uint8_t>(w->panels * w->panel_bytes);
  const int64_t scales = w->grouped ? taps * w->groups : 1;
  w->scale = aligned_array<float>(w->panels * scales * nr);
  if (!w->packed || !w->scale) {
    delete w;
    return nullptr;
  }
  const int64_t quad = 4 * nr, half = quad / 2;
  const int64_t per_tap = weight_group > 0 ? (inputs + weight_group - 1) / weight_group : 1;
  for (int64_t o = 0; o < w->panels * nr; o++) {
    const int64_t panel = o / nr, j = o % nr;
    uint8_t *base = w->packed + panel * w->panel_bytes;
    for (int64_t t = 0; t < taps; t++)
      for (int64_t i = 0; i < w->groups * group; i++) {
        // padding has code 0, that is the offset: its activation codes are zero anyway
        int code = 0;
        if (o < outputs && i < inputs) code = codes[(o * taps + t) * inputs + i];
        const int64_t place = ((t * w->groups * group + i) / 4) * quad + 4 * j + i % 4;
        const int64_t block = place / quad, inside = place % quad;
        const uint8_t nibble = (uint8_t)(code + COD_WEIGHT_OFFSET) & 15;
        base[block * half + inside % half] |= inside < half ? nibble : (uint8_t)(nibble << 4);
      }
    if (o >= outputs) continue;
    if (!w->grouped) {
      w->scale[panel * nr + j] = scale[o];
    } else {
      for (int64_t t = 0; t < taps; t++)
        for (int64_t g = 0; g < w->groups; g++)
          w->scale[(panel * scales + t * w->groups + g) * nr + j] =
              scale[(o * taps + t) * per_tap + g * group / weight_group];
    }
  }
  return w;
}

void cod_weight_free(cod_weight *weight) { delete weight; }

int64_t cod_weight_bytes(const cod_weight *w) {
  if (!w) return 0;
  const int64_t scales = w->grouped ? w->taps * w->groups : 1;
  return w->panels * w->panel_bytes + w->panels * scales * w->columns * (int64_t)sizeof(float);
}

int32_t cod_conv(const cod_input *x, const cod_geometry *geometry, const cod_weight *w,
                 const cod_output *y, int32_t threads) {
  const auto &k = kernels();
  if (!x || !w || !y || !fits(geometry) || w->columns != k.columns) return COD_BAD_ARGUMENT;
  if (w->taps != (int64_t)geometry->kernel_h * geometry->kernel_w) return COD_BAD_ARGUMENT;
  if (x->code_stride < w->groups * w->group) return COD_BAD_ARGUMENT;
  const int64_t rows = geometry->batch * geometry->out_h * geometry->out_w;
  if (rows == 0) return COD_OK;
  const int64_t taps = w->taps, groups = w->groups, mr = k.rows, nr = k.columns;
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t spread = 3 * (int64_t)threads;
  int64_t cuts = threads > 1 && blocks < spread ? (spread + blocks - 1) / blocks : 1;
  if (cuts > w->panels) cuts = w->panels;
  const int step_stride = x->step_mode ? 1 : 0;
  const Taps source{*geometry};
  const bool direct = taps == 1 && geometry->stride_h == 1 && geometry->stride_w == 1 &&
                      geometry->pad_h == 0 && geometry->pad_w == 0;
  std::vector<int8_t> zero_codes((size_t)(groups * w->group), 0);
  std::vector<float> zero_steps((size_t)groups, 0.0f);
  std::vector<int32_t> zero_sums((size_t)groups, 0);
  const int64_t scales = w->grouped ? taps * groups : 1;
  std::atomic<bool> failed{false};
  auto body = [&](int64_t first, int64_t last) {
    Aligned bytes(2 * w->panel_bytes), tile(mr * nr * (int64_t)sizeof(float));
    if (!bytes.data || !tile.data) {
      failed = true;
      return;
    }
    auto *acc = reinterpret_cast<float *>(tile.data);
    const int64_t tiles = (kRowBlock + mr - 1) / mr, pointers = taps * mr;
    std::vector<const int8_t *> xp((size_t)(tiles * pointers));
    std::vector<const float *> sp((size_t)(tiles * pointers));
    std::vector<const int32_t *> cp((size_t)(tiles * pointers));
    for (int64_t item = first; item < last; item++) {
      const int64_t begin = item / cuts * kRowBlock, cut = item % cuts;
      const int64_t end = begin + kRowBlock < rows ? begin + kRowBlock : rows;
      for (int64_t i = 0; i < tiles * mr && begin + i / mr * mr < end; i++)
        for (int64_t t = 0; t < taps; t++) {
          const int64_t row = begin + i, at = i / mr * pointers + t * mr + i % mr;
          const int64_t from = row >= end ? -1 : direct ? row : source(row, t);
          xp[at] = from < 0 ? zero_codes.data() : x->codes + from * x->code_stride;
          sp[at] = from < 0 ? zero_steps.data() : x->step + from * groups * step_stride;
          cp[at] = from < 0 ? zero_sums.data() : x->sums + from * groups;
        }
      for (int64_t p = cut * w->panels / cuts; p < (cut + 1) * w->panels / cuts; p++) {
        k.unpack(w->packed + p * w->panel_bytes, w->panel_bytes, bytes.data);
        const float *scale = w->scale + p * scales * nr;
        const int64_t o = p * nr;
        cod::Epilogue out{nullptr, y->row_stride, w->grouped ? nullptr : scale,
                          y->bias ? y->bias + o : nullptr, 0,
                          (int)(w->outputs - o < nr ? w->outputs - o : nr), y->activation, acc};
        for (int64_t tile_at = 0; begin + tile_at * mr < end; tile_at++) {
          const int64_t at = tile_at * pointers, row = begin + tile_at * mr;
          out.y = y->data + row * y->row_stride + o;
          out.rows = (int)(end - row < mr ? end - row : mr);
          k.tile(&xp[at], &sp[at], &cp[at], bytes.data, w->grouped ? scale : nullptr, taps, groups,
                 w->group, step_stride, x->wide, out);
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

int32_t cod_depthwise(const float *x_hat, const cod_geometry *geometry, int64_t channels,
                      const float *weight, const cod_output *y, int32_t threads) {
  if (!x_hat || !weight || !y || !fits(geometry) || channels < 1) return COD_BAD_ARGUMENT;
  const int64_t rows = geometry->batch * geometry->out_h * geometry->out_w;
  const int64_t taps = (int64_t)geometry->kernel_h * geometry->kernel_w;
  const Taps source{*geometry};
  const auto &k = kernels();
  cod::parallel_for(rows, 64, threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      float *out = y->data + row * y->row_stride;
      for (int64_t c = 0; c < channels; c++) out[c] = y->bias ? y->bias[c] : 0.0f;
      for (int64_t t = 0; t < taps; t++) {
        const int64_t from = source(row, t);
        if (from >= 0) k.multiply_add(x_hat + from * channels, weight + t * channels, channels, out);
      }
      if (y->activation != COD_ACT_NONE)
        k.activate(out, channels, y->activation);
    }
  });
  return COD_OK;
}

}  // extern "C"
