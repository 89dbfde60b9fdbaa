// chain: instructions that work row by row, run over blocks of rows. What only they read and write
// stays in scratch memory of the thread, in cache; each runs as it would over all rows, so that a
// chain gives the bits of its instructions one by one. A depthwise convolution, which reads whole
// maps, may be among them if nothing in the chain writes those.
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

#include "aligned.h"
#include "kernels.h"
#include "program.h"

namespace cod {
namespace {

constexpr int64_t kNear = 1024 * 1024;  // bytes of slots in use at once: a second cache
constexpr int64_t kFewestRows = 288, kMostRows = 1152;  // products of fewer rows are slower
constexpr int64_t kSmallest = 24;  // rows of a block where many threads want some
constexpr int64_t kMostSlots = 64, kMostStages = 256, kMostOperands = 16;

struct Stage {
  const Kind *kind;
  Instruction one;
  std::vector<Operand> operands;
  std::vector<int64_t> ints, shift;  // shift: bytes from row to row of each operand
};

// The chain for blocks of one size.
struct Blocks {
  int64_t block, count, bytes;     // bytes: of the scratch memory
  std::vector<Stage> whole, last;  // for a whole block, and for the rest
};

struct Chain : Prepared {
  int64_t rows;
  std::vector<Blocks> sizes;  // the largest first
};

// Rows of whole tiles of products: one that is not full takes as long as one that is.
int64_t whole_tiles(int64_t rows) {
  const int64_t tile = kernels().carrier_rows;
  return (rows + tile - 1) / tile * tile;
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
  std::vector<int64_t> row_bytes, first, last, offset;  // first, last: stages that use it
  int64_t bytes = 0;

  // Bytes of a row in all slots that are in use at once, at most.
  int64_t peak(int64_t stages) const {
    int64_t most = 0;
    for (int64_t at = 0; at < stages; at++) {
      int64_t now = 0;
      for (size_t i = 0; i < row_bytes.size(); i++)
        if (first[i] <= at && at <= last[i]) now += row_bytes[i];
      most = std::max(most, now);
    }
    return most;
  }

  // Offsets for so many rows: slots that are never in use at the same time share memory.
  void place(int64_t rows) {
    offset.assign(row_bytes.size(), 0), bytes = 0;
    const auto size = [&](size_t i) { return (row_bytes[i] * rows + 255) / 128 * 128; };
    for (size_t i = 0; i < row_bytes.size(); i++) {
      bool moved = true;
      while (moved) {
        moved = false;
        for (size_t j = 0; j < i; j++)
          if (first[j] <= last[i] && first[i] <= last[j] && offset[j] < offset[i] + size(i) &&
              offset[i] < offset[j] + size(j))
            offset[i] = offset[j] + size(j), moved = true;
      }
      bytes = std::max(bytes, offset[i] + size(i));
    }
  }
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
    case 35:  // carrier_depthwise: reads whole maps, which nothing in the chain writes
      return s.operands.size() > 1 && s.operands[1].space != kScratchSpace;
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
  s.one.floats = floats, s.one.float_count = float_count, s.one.rows = rows;
  left -= float_count;
  return s.kind->check(s.one, build);
}

// Which stages use each slot.
bool find_lifetimes(Reader in, Slots &slots, int64_t &stages) {
  constexpr int64_t kAny = (int64_t)1 << 62;
  slots.first.assign(slots.row_bytes.size(), kMostStages);
  slots.last.assign(slots.row_bytes.size(), 0);
  stages = in.next(1, kMostStages);
  for (int64_t at = 0; at < stages; at++) {
    in.next(1, kAny);
    const int64_t operands = in.next(1, kMostOperands), ints = in.next(0, 1 << 10);
    in.next(0, kAny);
    for (int64_t i = 0; i < operands; i++) {
      const int64_t kind = in.next(-1, 1), slot = in.next(0, kAny);
      in.next(0, kAny), in.next(0, kAny);
      if (kind < 1) continue;
      if (slot >= (int64_t)slots.first.size()) return false;
      slots.first[slot] = std::min(slots.first[slot], at);
      slots.last[slot] = at;
    }
    for (int64_t i = 0; i < ints; i++) in.next(-kAny, kAny);
  }
  return in.good && in.at == in.end;
}

bool prepare(const Instruction &one, const Build &build, const Reader &head, Slots &slots,
             int64_t rows, Blocks &to) {
  slots.place(to.block);
  to.bytes = slots.bytes, to.count = (rows + to.block - 1) / to.block;
  const int64_t rest = rows % to.block;
  for (int pass = 0; pass < (rest ? 2 : 1); pass++) {
    Reader in = head;
    auto &stages = pass ? to.last : to.whole;
    const double *floats = one.floats;
    int64_t left = one.float_count;
    const int64_t count = in.next(1, kMostStages);
    stages.reserve((size_t)count);
    for (int64_t i = 0; i < count; i++) {
      const int64_t before = left;
      if (!add_stage(one, build, in, slots, rows, pass ? rest : to.block, floats, left, stages))
        return false;
      floats += before - left;
    }
    if (in.at != in.end || left) return false;
  }
  return true;
}

bool check(Instruction &one, const Build &build) {
  auto found = std::make_unique<Chain>();
  Slots slots;
  Reader head{one.ints, one.ints + one.int_count};
  const int64_t rows = found->rows = head.next(1, (int64_t)1 << 40);
  for (int64_t i = head.next(0, kMostSlots); i > 0; i--)
    slots.row_bytes.push_back(head.next(1, 1 << 24));
  int64_t stages = 0;
  if (!head.good || !find_lifetimes(head, slots, stages)) return false;
  int64_t block = kNear / std::max<int64_t>(slots.peak(stages), 1);
  block = std::min(std::max(block, kFewestRows), kMostRows);
  const int64_t count = (rows + block - 1) / block;
  block = whole_tiles((rows + count - 1) / count);  // of about the same size
  const int64_t smallest = whole_tiles(kSmallest);
  for (;;) {
    found->sizes.emplace_back();
    found->sizes.back().block = std::min(block, rows);
    if (!prepare(one, build, head, slots, rows, found->sizes.back())) return false;
    if (block <= smallest) break;
    block = std::max(whole_tiles(block / 2), smallest);
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
  kept.data = static_cast<uint8_t *>(aligned_memory(bytes + 128));
  kept.bytes = kept.data ? bytes : 0;
  return kept.data;
}

int32_t run(const Instruction &one, const Run &run) {
  const auto &chain = static_cast<const Chain &>(*one.prepared);
  // the largest blocks, unless smaller ones leave the busiest thread with a good deal less
  size_t size = 0;
  const auto busiest = [&](size_t i) {
    const Blocks &c = chain.sizes[i];
    return (c.count + run.threads - 1) / run.threads * c.block;
  };
  for (size_t i = 1; i < chain.sizes.size(); i++)
    if (9 * busiest(i) < 8 * busiest(size)) size = i;
  const Blocks &c = chain.sizes[size];
  std::atomic<int32_t> result{COD_OK};
  parallel_for(c.count, 1, run.threads, [&](int64_t begin, int64_t end) {
    Run own = run;
    own.threads = 1;
    own.scratch = slot_memory(c.bytes);
    if (!own.scratch) {
      result = COD_NO_MEMORY;
      return;
    }
    Operand operands[kMostOperands];
    for (int64_t b = begin; b < end; b++) {
      own.row = b * c.block;
      for (const Stage &s : (b + 1) * c.block <= chain.rows ? c.whole : c.last) {
        for (size_t i = 0; i < s.operands.size(); i++) {
          operands[i] = s.operands[i];
          operands[i].offset += s.shift[i] * b * c.block;
        }
        Instruction now = s.one;
        now.operands = operands;
        const int32_t code = s.kind->run(now, own);
        if (code != COD_OK) result = code;
      }
    }
  });
  return result;
}

}  // namespace

extern const Kind kKind_chain;
const Kind kKind_chain{"chain", 0, check, run};

}  // namespace cod
