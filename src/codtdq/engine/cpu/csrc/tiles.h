// The eight tile registers of AMX, 16 rows of 64 bytes each, by the same names in hardware and
// (with COD_AMX_EMULATED) in software, for tests on processors without them.
#pragma once
#include <cstdint>

#ifdef COD_AMX_EMULATED

namespace cod {
namespace {

struct SoftTile {
  int8_t bytes[16][64];
};
thread_local SoftTile soft_tiles[8];

inline void soft_load(int tile, const void *from, int64_t stride) {
  for (int r = 0; r < 16; r++)
    __builtin_memcpy(soft_tiles[tile].bytes[r], (const char *)from + r * stride, 64);
}
inline void soft_store(int tile, void *to, int64_t stride) {
  for (int r = 0; r < 16; r++)
    __builtin_memcpy((char *)to + r * stride, soft_tiles[tile].bytes[r], 64);
}
// Row m, column n of c: the sum over quads k of a[m][4 k + i] b[k][4 n + i].
inline void soft_dot(int c, int a, int b) {
  for (int m = 0; m < 16; m++)
    for (int n = 0; n < 16; n++) {
      int32_t sum;
      __builtin_memcpy(&sum, soft_tiles[c].bytes[m] + 4 * n, 4);
      for (int k = 0; k < 64; k++)
        sum += soft_tiles[a].bytes[m][k] * soft_tiles[b].bytes[k / 4][4 * n + k % 4];
      __builtin_memcpy(soft_tiles[c].bytes[m] + 4 * n, &sum, 4);
    }
}
inline void soft_zero(int tile) { soft_tiles[tile] = SoftTile{}; }

}  // namespace
}  // namespace cod

#define COD_TILE_CONFIGURE(config) (void)(config)
#define COD_TILE_RELEASE()
#define COD_TILE_ZERO(tile) soft_zero(tile)
#define COD_TILE_LOAD(tile, from, stride) soft_load(tile, from, stride)
#define COD_TILE_STORE(tile, to, stride) soft_store(tile, to, stride)
#define COD_TILE_DOT(c, a, b) soft_dot(c, a, b)

#else

// Not _tile_loadconfig: GCC's says that it reads eight bytes, and the stores of the others are left
// out.
#define COD_TILE_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" ::"m"(config))
#define COD_TILE_RELEASE() _tile_release()
#define COD_TILE_ZERO(tile) _tile_zero(tile)
#define COD_TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define COD_TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define COD_TILE_DOT(c, a, b) _tile_dpbssd(c, a, b)

#endif
