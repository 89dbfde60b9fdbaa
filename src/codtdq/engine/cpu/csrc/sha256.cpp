#include "sha256.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cod {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(64) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

__attribute__((noinline)) void plain_blocks(uint32_t *state, const uint8_t *data, size_t blocks) {
  for (; blocks; blocks--, data += 64) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
      w[i] = (uint32_t)data[4 * i] << 24 | data[4 * i + 1] << 16 | data[4 * i + 2] << 8 |
             data[4 * i + 3];
    for (int i = 16; i < 64; i++) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] +
             (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    std::memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
      const uint32_t e = s[4], a = s[0];
      const uint32_t one = s[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) +
                           ((e & s[5]) ^ (~e & s[6])) + kRound[i] + w[i];
      const uint32_t two =
          (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
      std::memmove(s + 1, s, 7 * sizeof(uint32_t));
      s[4] += one, s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
  }
}

#if defined(__x86_64__)
// The same with the instructions of x86: four rounds for each group of four words.
__attribute__((target("sha,sse4.1,ssse3"))) void fast_blocks(uint32_t *state, const uint8_t *data,
                                                             size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  const __m128i low = _mm_loadu_si128((const __m128i *)state);         // d c b a
  const __m128i high = _mm_loadu_si128((const __m128i *)(state + 4));  // h g f e
  const __m128i ab = _mm_shuffle_epi32(low, 0xb1), ef = _mm_shuffle_epi32(high, 0x1b);
  __m128i abef = _mm_alignr_epi8(ab, ef, 8), cdgh = _mm_blend_epi16(ef, ab, 0xf0);
  for (; blocks; blocks--, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; i++)
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), swap);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      const __m128i k = _mm_load_si128((const __m128i *)(kRound + 4 * i));
      const __m128i now = _mm_add_epi32(w[i % 4], k);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, now);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(now, 0x0e));
      if (i < 12) {  // words 4 i + 16 .. 4 i + 19 take the place of these
        const __m128i nine = _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4);
        const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), nine);
        w[i % 4] = _mm_sha256msg2_epu32(sum, w[(i + 3) % 4]);
      }
    }
    abef = _mm_add_epi32(abef, abef_before), cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

void add_blocks(uint32_t *state, const uint8_t *data, size_t blocks) {
#if defined(__x86_64__)
  static const bool fast = [] {
    unsigned a = 7, b = 0, c = 0, d = 0;
    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return (b >> 29 & 1) && __builtin_cpu_supports("sse4.1");
  }();
  if (fast) return fast_blocks(state, data, blocks);
#endif
  plain_blocks(state, data, blocks);
}

}  // namespace

void Sha256::add(const uint8_t *data, size_t bytes) {
  total_ += bytes;
  if (left_) {
    const size_t taken = std::min(bytes, 64 - left_);
    std::memcpy(rest_ + left_, data, taken);
    left_ += taken, data += taken, bytes -= taken;
    if (left_ < 64) return;
    add_blocks(state_, rest_, 1);
  }
  // In pieces: engines of WebAssembly replace slow first code between calls only.
  constexpr size_t kPiece = 1 << 10;
  for (size_t at = 0; at < bytes / 64; at += kPiece)
    add_blocks(state_, data + 64 * at, std::min(kPiece, bytes / 64 - at));
  left_ = bytes % 64;
  if (left_) std::memcpy(rest_, data + bytes / 64 * 64, left_);
}

std::string Sha256::hex() {
  const uint64_t bits = total_ * 8;
  uint8_t end[72] = {0x80};
  const size_t fill = (left_ < 56 ? 56 : 120) - left_;
  for (int i = 0; i < 8; i++) end[fill + i] = (uint8_t)(bits >> (56 - 8 * i));
  add(end, fill + 8);
  std::string text;
  for (uint32_t word : state_)
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  return text;
}

}  // namespace cod
