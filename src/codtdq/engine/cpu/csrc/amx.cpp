// AMX with int8 tiles: what AVX-512 has, and products of carriers in 32 x 32 tiles, four registers
// of sums. Rows are packed side by side, the depth filled up with zeros to whole tiles of 64.
//
// Leaves 0x1D and 0x1E of CPUID, which describe the tiles, are hidden by some virtual machines:
// palette 1, eight tiles of 16 x 64 bytes, is the only one there is and is taken as given. A
// product is compared with plain loops before the set is offered.
#include "avx512.h"
#include "table.h"
#include "tiles.h"
#ifndef COD_AMX_EMULATED
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace cod {
namespace {

constexpr int kTileRows = 16, kTileBytes = 64;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64, "what ldtilecfg reads");

struct Amx : Avx512 {
  static constexpr int kCarrierRows = 2 * kTileRows, kCarrierLift = 0;
  static constexpr bool kCarrierPacks = true;
  static int64_t carrier_sum_count(int64_t, int) { return 0; }
  static void carrier_sums(const int8_t *, int64_t, int64_t, int64_t, int, int32_t *) {}

  static int64_t length(int64_t taps, int64_t depth) {
    return (taps * depth + kTileBytes - 1) / kTileBytes * kTileBytes;
  }
  static int64_t carrier_packed(int64_t taps, int64_t depth) {
    return kCarrierRows * length(taps, depth);
  }
  static void carrier_pack(const int8_t *const *x, int64_t taps, int64_t depth, int8_t *to) {
    const int64_t all = length(taps, depth);
    for (int r = 0; r < kCarrierRows; r++, to += all) {
      for (int64_t t = 0; t < taps; t++)
        __builtin_memcpy(to + t * depth, x[t * kCarrierRows + r], (size_t)depth);
      __builtin_memset(to + taps * depth, 0, (size_t)(all - taps * depth));
    }
  }

  static void carrier_begin() {
    TileConfig config;
    for (int t = 0; t < 8; t++) config.bytes[t] = kTileBytes, config.rows[t] = kTileRows;
    COD_TILE_CONFIGURE(config);
  }
  static void carrier_end() { COD_TILE_RELEASE(); }

  // Tiles 0..3: sums; 4, 5: rows; 6, 7: weights.
  static void carrier_product(const CarrierTile &in, int32_t *sums) {
    const int64_t all = length(in.taps, in.depth), columns = 2 * kWidth, panel = 4 * columns;
    const int8_t *x = in.packed;
    const uint8_t *w = in.w;
    __asm__ volatile("" ::: "memory");  // loads of tiles do not say what they read
    COD_TILE_ZERO(0);
    COD_TILE_ZERO(1);
    COD_TILE_ZERO(2);
    COD_TILE_ZERO(3);
    for (int64_t k = 0; k < all; k += kTileBytes, x += kTileBytes, w += kTileBytes * columns) {
      COD_TILE_LOAD(4, x, all);
      COD_TILE_LOAD(6, w, panel);
      COD_TILE_LOAD(7, w + kTileBytes, panel);
      COD_TILE_DOT(0, 4, 6);
      COD_TILE_LOAD(5, x + kTileRows * all, all);
      COD_TILE_DOT(1, 4, 7);
      COD_TILE_DOT(2, 5, 6);
      COD_TILE_DOT(3, 5, 7);
    }
    const int64_t line = columns * (int64_t)sizeof(int32_t);
    COD_TILE_STORE(0, sums, line);
    COD_TILE_STORE(1, sums + kWidth, line);
    COD_TILE_STORE(2, sums + kTileRows * columns, line);
    COD_TILE_STORE(3, sums + kTileRows * columns + kWidth, line);
    __asm__ volatile("" ::: "memory");
  }

  // Whether a product of two tiles' depth is that of plain loops.
  static bool agrees() {
    constexpr int kDepth = 2 * kTileBytes, kAll = 2 * kTileRows, kColumns = 2 * kWidth;
    alignas(64) static int8_t x[kAll * kDepth];
    alignas(64) static uint8_t w[kDepth * kColumns];
    alignas(64) int32_t sums[kAll * kColumns];
    for (int i = 0; i < kAll * kDepth; i++) x[i] = (int8_t)(i * 37 % 255 - 127);
    for (int i = 0; i < kDepth * kColumns; i++) w[i] = (uint8_t)(i * 101 % 241 - 120);
    CarrierTile tile{};
    tile.packed = x, tile.w = w, tile.taps = 1, tile.depth = kDepth;
    carrier_begin();
    carrier_product(tile, sums);
    carrier_end();
    for (int r = 0; r < kAll; r++)
      for (int j = 0; j < kColumns; j++) {
        int32_t sum = 0;
        for (int k = 0; k < kDepth; k++)
          sum += x[r * kDepth + k] * (int8_t)w[k / 4 * 4 * kColumns + 4 * j + k % 4];
        if (sums[r * kColumns + j] != sum) return false;
      }
    return true;
  }

#ifdef COD_AMX_EMULATED
  static constexpr const char *kName = "amx-emulated";
  static const char *refusal() { return agrees() ? nullptr : "its self-test failed"; }
  static bool runs_here() { return Avx512::runs_here() && !refusal(); }
#else
  static constexpr const char *kName = "amx-int8";

  static const char *ask() {
    if (!Avx512::runs_here()) return "this processor has no AVX-512 VNNI beside it";
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & 1u << 24) || !(d & 1u << 25))
      return "this processor has no AMX with int8 tiles";
    unsigned low = 0, high = 0;  // the processor has AVX-512: the system has turned xgetbv on
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low >> 17 & 3) != 3) return "the operating system does not save tile registers";
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    if (syscall(SYS_arch_prctl, kRequest, kTileData) != 0)
      return "the operating system does not permit tile registers";
    return agrees() ? nullptr : "its self-test failed";
  }

  // Asked once; threads that ask at the same time find the same.
  static const char *refusal() {
    static const char *found = nullptr;
    static bool asked = false;
    if (!__atomic_load_n(&asked, __ATOMIC_ACQUIRE)) {
      __atomic_store_n(&found, ask(), __ATOMIC_RELAXED);
      __atomic_store_n(&asked, true, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(&found, __ATOMIC_RELAXED);
  }
  static bool runs_here() { return !refusal(); }
#endif
};

}  // namespace

#ifdef COD_AMX_EMULATED
extern const Kernels kAmxEmulated;
constexpr Kernels kAmxEmulated = table_of<Amx>();
#else
extern const Kernels kAmx;
constexpr Kernels kAmx = table_of<Amx>();
#endif

}  // namespace cod
