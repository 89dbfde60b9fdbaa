// Programs: a whole forward pass as a list of instructions, run by one call (program.cpp).
//
// Encoding. Plain arrays of fixed-size records (codtdq_native.h), without pointers, so that a
// program can be written to a file: an instruction is a kind and ranges of three arrays: operands,
// whole numbers (int64) and floats (double). What a number means is the kind's business; the
// operands that it writes come first. An operand is a strided view: a space, a buffer of that
// space, an offset in bytes, a type, a shape and strides in elements (never negative; 0 repeats).
//   COD_SPACE_NONE      left out: allowed where the kind says so
//   COD_SPACE_ARENA     memory of one run (buffer 0), of `arena_bytes`; holds anything at first
//   COD_SPACE_CONSTANT  buffer i of the constants: weights, packed weights, tables
//   COD_SPACE_INPUT     argument i; COD_SPACE_OUTPUT: result i, memory of the caller
//
// Checks. `cod_program_build` checks every operand against the size of its buffer, that nothing is
// written into inputs or constants, and then calls the kind's `check`, once. After that no input
// may lead out of bounds: a `run` trusts what its `check` has seen, reads no index out of the arena
// (tables of indices are constants, looked through by `check`), and bounds what it computes from
// floats, NaN included.
//
// Threads. Instructions run one after another. A `run` shares its work with `parallel_for`
// (kernels.h) on up to `run.threads` threads and returns when it is done; results must not depend
// on the cut. Scratch memory of a thread: `scratch` (aligned.h), which a nested call may use too.
//
// To add a kind: a row in program_kinds.h, COD_KIND(name, NUMBER), numbers are for ever; a file
// program_<something>.cpp that defines `const Kind kKind_name`; the file's name in CMakeLists.txt;
// and an emitter in engine/program. Loops over lanes belong into a template over Isa, whose
// functions the instruction set's table holds (float_kernels.h shows how).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codtdq_native.h"

namespace cod {

using Operand = cod_operand;
// Bytes of a buffer and elements of a view, at most: sums and products of them cannot overflow, and
// fit into the sizes of a machine with 32 bits.
constexpr int64_t kMostBytes = (int64_t)1 << (sizeof(size_t) == 4 ? 30 : 46);
constexpr int32_t kScratchSpace = 100;  // inside of chains only: no program may name it

// Bytes of one element of a type, 0 if there is no such type.
inline int64_t size_of(int32_t type) {
  switch (type) {
    case COD_TYPE_F32:
    case COD_TYPE_I32:
      return 4;
    case COD_TYPE_I8:
    case COD_TYPE_U8:
      return 1;
    case COD_TYPE_I64:
      return 8;
    default:
      return 0;
  }
}

// What a kind works out in `check` and keeps for its runs.
struct Prepared {
  virtual ~Prepared() = default;
};

struct Instruction {
  int32_t kind;
  const Operand *operands;
  int64_t operand_count;
  const int64_t *ints;
  int64_t int_count;
  const double *floats;
  int64_t float_count;
  std::shared_ptr<const Prepared> prepared;  // chains share it between threads
  int64_t rows = 0;  // inside of chains: of the whole, where an operand holds a block of them

  bool has(int64_t i) const { return i < operand_count && operands[i].space != COD_SPACE_NONE; }
};

// What `check` may look at: constants have their values already.
struct Build {
  const uint8_t *const *constants;
  const uint8_t *constant(const Operand &operand) const {
    return constants[operand.buffer] + operand.offset;
  }
};

// Memory and threads of one run.
struct Run {
  uint8_t *arena;
  const uint8_t *const *constants;
  const uint8_t *const *inputs;
  uint8_t *const *outputs;
  int threads;
  uint8_t *scratch = nullptr;  // of a chain's block of rows (program_chain.cpp)
  int64_t row = 0;             // the first one of that block

  template <typename T>
  const T *read(const Operand &x) const {
    const uint8_t *base = x.space == COD_SPACE_ARENA      ? arena
                          : x.space == kScratchSpace      ? scratch
                          : x.space == COD_SPACE_CONSTANT ? constants[x.buffer]
                          : x.space == COD_SPACE_INPUT    ? inputs[x.buffer]
                                                          : outputs[x.buffer];
    return reinterpret_cast<const T *>(base + x.offset);
  }
  template <typename T>
  T *write(const Operand &x) const {
    uint8_t *base = x.space == COD_SPACE_ARENA ? arena
                    : x.space == kScratchSpace ? scratch
                                               : outputs[x.buffer];
    return reinterpret_cast<T *>(base + x.offset);
  }
};

struct Kind {
  const char *name;
  int64_t writes;  // operands that it writes: the first ones
  // whether shapes, types and numbers go together; may set `prepared`
  bool (*check)(Instruction &, const Build &);
  int32_t (*run)(const Instruction &, const Run &);  // COD_OK, COD_NO_MEMORY or COD_BAD_ARGUMENT
};

const Kind *kind_of(int32_t number);  // NULL: there is none

// Helpers of checks.

inline int64_t elements(const Operand &x) {
  int64_t n = 1;
  for (int32_t d = 0; d < x.ndim; d++) n *= x.shape[d];
  return n;
}
inline bool same_shape(const Operand &x, const Operand &y) {
  if (x.ndim != y.ndim) return false;
  for (int32_t d = 0; d < x.ndim; d++)
    if (x.shape[d] != y.shape[d]) return false;
  return true;
}
// Elements from the first to the last; they lie inside of the buffer since the program was built.
inline int64_t extent(const Operand &x) {
  int64_t last = 0;
  for (int32_t d = 0; d < x.ndim; d++) {
    if (x.shape[d] == 0) return 0;
    last += (x.shape[d] - 1) * x.stride[d];
  }
  return last + 1;
}
// Without gaps, in the order of its axes.
inline bool is_dense(const Operand &x) {
  int64_t next = 1;
  for (int32_t d = x.ndim - 1; d >= 0; d--) {
    if (x.shape[d] != 1 && x.stride[d] != next) return false;
    next *= x.shape[d];
  }
  return true;
}
inline bool is_float(const Operand &x) { return x.type == COD_TYPE_F32; }
// A row of n floats without gaps.
inline bool is_vector(const Operand &x, int64_t n) {
  return is_float(x) && x.ndim == 1 && x.shape[0] == n && (n == 1 || x.stride[0] == 1);
}

}  // namespace cod
