// chain: instructions that work row by row, run over blocks of rows. What only they read and write
// stays in scratch memory of the thread, in cache; each runs as it would over all rows, so that a
// chain gives the bits of its instructions one by one.
//   Operands: those of the instructions that lie in memory, whole views with all rows.
//   ints: rows; number of slots, bytes of a row of each; number of instructions; then for each of
//   them its kind, how many operands, ints and floats it has, four numbers for each operand, and
//   its ints. An operand: (-1, 0, 0, 0) left out; (0, i, sliced, 0) operand i, with all of its rows
//   or those of the block; (1, slot, type, first column * 2^32 + columns) rows of a slot, of so
//   many columns, or a vector with one value for each row (no columns).
//   floats: those of the instructions.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <vector>

#include "kernels.h"
#include "program.h"

namespace cod {
namespace {

constexpr int64_t kNear = 384 * 1024;  // bytes of slots that stay in the second cache
constexpr int64_t kTile = 6;           // rows of a tile of products, of most sets
constexpr int64_t kMostRows = 192, kFewestBlocks = 4;
constexpr int64_t kMostSlots = 64, kMostStages = 256, kMostOperands = 16;

struct Stage {
  const Kind *kind;
  Instruction one;
  std::vector<Operand> operands;
  std::vector<int64_t> ints, shift;  // shift: bytes from row to row of each operand
};

struct Chain : Prepared {
  int64_t rows, block, bytes;      // bytes: of the scratch memory
  std::vector<Stage> whole, last;  // for a whole block, and for the rest
};

int64_t block_of(int64_t rows, int64_t row_bytes) {
  int64_t most = kNear / std::max<int64_t>(row_bytes, 1) / kTile * kTile;
  most = std::min(std::max(most, 4 * kTile), kMostRows);
  // a few blocks for each thread, of about the same size
  const int64_t blocks = std::max((rows + most - 1) / most, rows >= 8 * kTile ? kFewestBlocks : 1);
  const int64_t each = (rows + blocks - 1) / blocks;
  return (each + kTile - 1) / kTile * kTile;
}

// Reads numbers one by one; `good` tells whether there were enough.
struct Reader {
  const int64_t *at, *end;
  bool good = true;
  int64_t next(int64_t least, int64_t most) {
    if (at == end || *at < least || *at > most) good = false;
    return good ? *at++ : least;
  }
};

struct Slots {
  std::vector<int64_t> row_bytes, offset;
};

// An operand of a stage for n rows.
bool resolve(const Instruction &chain, Reader &in, const Slots &slots, int64_t rows, int64_t n,
             Operand &to, int64_t &shift) {
  constexpr int64_t kAny = (int64_t)1 << 62;
  const int64_t kind = in.next(-1, 1), a = in.next(0, kAny), b = in.next(0, kAny);
  const int64_t c = in.next(0, kAny);
  to = Operand{}, shift = 0;
  if (!in.good) return false;
  if (kind < 0) {
    to.space = COD_SPACE_NONE;
    return true;
  }
  if (kind == 0) {
    if (a >= chain.operand_count || !chain.has(a)) return false;
    to = chain.operands[a];
    if (!b) return true;
    if (to.ndim < 1 || to.shape[0] != rows) return false;
    shift = to.stride[0] * size_of(to.type);
    to.shape[0] = n;
    return true;
  }
  const int64_t size = size_of((int32_t)b), first = c >> 32, columns = c & 0xffffffff;
  if (a >= (int64_t)slots.offset.size() || b > 100 || !size) return false;
  const int64_t pitch = slots.row_bytes[a] / size;
  if (slots.row_bytes[a] % size || first + std::max<int64_t>(columns, 1) > pitch) return false;
  to.space = kScratchSpace, to.type = (int32_t)b;
  to.offset = slots.offset[a] + first * size;
  to.ndim = columns ? 2 : 1;
  to.shape[0] = n, to.stride[0] = pitch;
  if (columns) to.shape[1] = columns, to.stride[1] = 1;
  return columns || pitch == 1;
}

// Kinds that work row by row, given operands of rows.
bool is_local(const Stage &s) {
  switch (s.one.kind) {
    case 1:  // copy
    case 2:  // unary
    case 3:  // binary
    case 4:  // norm
      return true;
    case 8:   // conv
    case 34:  // carrier_product
      // one tap at a distance of one, without padding
      return s.ints.size() >= 13 && s.ints[5] == 1 && s.ints[6] == 1 && s.ints[7] == 1 &&
             s.ints[8] == 1 && s.ints[9] == 0 && s.ints[10] == 0 &&
             (s.one.kind == 8 || s.ints[13] == 1);
    case 33:  // carry_fixed: without a step it looks at all rows
      if (s.operands.size() < 4 || s.operands[3].space == COD_SPACE_NONE) return false;
      [[fallthrough]];
    case 32:  // carry_groups
    case 36:  // carry_tokens
      return !s.ints.empty() && s.ints[0] == 1;
    default:
      return false;
  }
}

bool add_stage(const Instruction &chain, const Build &build, Reader &in, const Slots &slots,
               int64_t rows, int64_t n, const double *floats, int64_t &left,
               std::vector<Stage> &to) {
  to.emplace_back();
  Stage &s = to.back();
  s.one = Instruction{};
  s.one.kind = (int32_t)in.next(1, 1 << 20);
  const int64_t operands = in.next(1, kMostOperands), ints = in.next(0, 1 << 10);
  const int64_t float_count = in.next(0, left);
  s.kind = in.good ? kind_of(s.one.kind) : nullptr;
  if (!s.kind || operands < s.kind->writes) return false;
  s.operands.resize((size_t)operands), s.shift.resize((size_t)operands);
  for (int64_t i = 0; i < operands; i++) {
    Operand &x = s.operands[(size_t)i];
    if (!resolve(chain, in, slots, rows, n, x, s.shift[(size_t)i])) return false;
    const bool writable =
        x.space == COD_SPACE_ARENA || x.space == COD_SPACE_OUTPUT || x.space == kScratchSpace;
    if (i < s.kind->writes && !writable) return false;
  }
  for (int64_t i = 0; i < ints; i++)
    s.ints.push_back(in.next(-((int64_t)1 << 62), (int64_t)1 << 62));
  if (!in.good || !is_local(s)) return false;
  if (s.one.kind == 8 || s.one.kind == 34) {  // the geometry of so many rows
    const int64_t own[5] = {1, 1, n, 1, n};
    std::copy(own, own + 5, s.ints.begin());
  }
  s.one.operands = s.operands.data(), s.one.operand_count = operands;
  s.one.ints = s.ints.data(), s.one.int_count = ints;
  s.one.floats = floats, s.one.float_count = float_count;
  left -= float_count;
  return s.kind->check(s.one, build);
}

bool check(Instruction &one, const Build &build) {
  auto found = std::make_unique<Chain>();
  Slots slots;
  Reader head{one.ints, one.ints + one.int_count};
  found->rows = head.next(1, (int64_t)1 << 40);
  int64_t row_bytes = 0;
  for (int64_t i = head.next(0, kMostSlots); i > 0; i--) {
    slots.row_bytes.push_back(head.next(1, 1 << 24));
    row_bytes += slots.row_bytes.back();
  }
  if (!head.good) return false;
  found->block = std::min(block_of(found->rows, row_bytes), found->rows);
  found->bytes = 0;
  for (const int64_t each : slots.row_bytes) {
    slots.offset.push_back(found->bytes);
    found->bytes += (each * found->block + 255) / 128 * 128;
  }
  const int64_t rest = found->rows % found->block;
  for (int pass = 0; pass < (rest ? 2 : 1); pass++) {
    Reader in = head;
    auto &stages = pass ? found->last : found->whole;
    const double *floats = one.floats;
    int64_t left = one.float_count;
    const int64_t count = in.next(1, kMostStages);
    stages.reserve((size_t)count);
    for (int64_t i = 0; i < count; i++) {
      const int64_t before = left;
      if (!add_stage(one, build, in, slots, found->rows, pass ? rest : found->block, floats, left,
                     stages))
        return false;
      floats += before - left;
    }
    if (in.at != in.end || left) return false;
  }
  one.prepared = std::move(found);
  return true;
}

// Memory of a thread for slots; instructions inside of a chain use `scratch` themselves.
uint8_t *slot_memory(int64_t bytes) {
  struct Kept {
    ~Kept() { std::free(data); }
    uint8_t *data = nullptr;
    int64_t bytes = 0;
  };
  static thread_local Kept kept;
  if (bytes <= kept.bytes && kept.data) return kept.data;
  std::free(kept.data);
  kept.data = static_cast<uint8_t *>(std::aligned_alloc(128, (size_t)(bytes + 255) / 128 * 128));
  kept.bytes = kept.data ? bytes : 0;
  return kept.data;
}

int32_t run(const Instruction &one, const Run &run) {
  const auto &c = static_cast<const Chain &>(*one.prepared);
  const int64_t blocks = (c.rows + c.block - 1) / c.block;
  std::atomic<int32_t> result{COD_OK};
  parallel_for(blocks, 1, run.threads, [&](int64_t begin, int64_t end) {
    Run own = run;
    own.threads = 1;
    own.scratch = slot_memory(c.bytes);
    if (!own.scratch) {
      result = COD_NO_MEMORY;
      return;
    }
    Operand operands[kMostOperands];
    for (int64_t b = begin; b < end; b++)
      for (const Stage &s : (b + 1) * c.block <= c.rows ? c.whole : c.last) {
        for (size_t i = 0; i < s.operands.size(); i++) {
          operands[i] = s.operands[i];
          operands[i].offset += s.shift[i] * b * c.block;
        }
        Instruction now = s.one;
        now.operands = operands;
        const int32_t code = s.kind->run(now, own);
        if (code != COD_OK) result = code;
      }
  });
  return result;
}

}  // namespace

extern const Kind kKind_chain;
const Kind kKind_chain{"chain", 0, check, run};

}  // namespace cod
