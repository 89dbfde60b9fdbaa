// Builds and runs programs: checks all of the code once, then runs it instruction by instruction.
#include "program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include "aligned.h"
#include "kernels.h"

namespace cod {

#define COD_KIND(name, number) extern const Kind kKind_##name;
#include "program_kinds.h"

const Kind *kind_of(int32_t number) {
  switch (number) {
#define COD_KIND(name, own) \
  case own:                 \
    return &kKind_##name;
#include "program_kinds.h"
    default:
      return nullptr;
  }
}

namespace {

// Whether a view lies inside of a buffer of so many bytes.
bool inside(const cod_operand &x, int64_t bytes) {
  const int64_t size = size_of(x.type);
  if (!size || x.ndim < 0 || x.ndim > COD_MAX_AXES || x.offset < 0 || x.offset % size) return false;
  int64_t last = 0, count = 1;
  for (int32_t d = 0; d < x.ndim; d++) {
    if (x.shape[d] < 1 || x.shape[d] > kMostBytes || x.stride[d] < 0 || x.stride[d] > kMostBytes)
      return false;
    if (count > kMostBytes / x.shape[d]) return false;
    count *= x.shape[d];
    if (x.shape[d] > 1 && x.stride[d] > kMostBytes / (x.shape[d] - 1)) return false;
    last += (x.shape[d] - 1) * x.stride[d];
    if (last > kMostBytes) return false;
  }
  return bytes >= size && x.offset <= bytes - size && last <= (bytes - size - x.offset) / size;
}

bool sizes_fit(const cod_buffer *buffers, int64_t count) {
  if (count < 0 || (count && !buffers)) return false;
  for (int64_t i = 0; i < count; i++)
    if (buffers[i].bytes < 0 || buffers[i].bytes > kMostBytes) return false;
  return true;
}

class Program {
 public:
  int32_t build(const cod_program_code &code, int64_t *wrong) {
    *wrong = -1;
    if (code.instruction_count < 0 || code.operand_count < 0 || code.int_count < 0 ||
        code.float_count < 0 || code.arena_bytes < 0 || code.arena_bytes > kMostBytes ||
        !sizes_fit(code.constants, code.constant_count) ||
        !sizes_fit(code.inputs, code.input_count) || !sizes_fit(code.outputs, code.output_count))
      return COD_BAD_ARGUMENT;
    for (int64_t i = 0; i < code.constant_count; i++) {
      if (code.constants[i].bytes && !code.constants[i].data) return COD_BAD_ARGUMENT;
      constants_.push_back(static_cast<const uint8_t *>(code.constants[i].data));
    }
    for (int64_t i = 0; i < code.input_count; i++) input_bytes_.push_back(code.inputs[i].bytes);
    for (int64_t i = 0; i < code.output_count; i++) output_bytes_.push_back(code.outputs[i].bytes);
    set_ = &kernels();
    arena_bytes_ = code.arena_bytes;
    operands_.assign(code.operands, code.operands + code.operand_count);
    ints_.assign(code.ints, code.ints + code.int_count);
    floats_.assign(code.floats, code.floats + code.float_count);
    instructions_.reserve((size_t)code.instruction_count);
    for (*wrong = 0; *wrong < code.instruction_count; ++*wrong)
      if (!add(code, code.instructions[*wrong])) return COD_BAD_ARGUMENT;
    *wrong = -1;
    return COD_OK;
  }

  // Whether these buffers are those that the code was checked against, or longer.
  bool takes(const cod_buffer *inputs, int64_t input_count, const cod_result *outputs,
             int64_t output_count) const {
    return long_enough(inputs, input_count, input_bytes_) &&
           long_enough(outputs, output_count, output_bytes_);
  }
  int64_t instruction_count() const { return (int64_t)instructions_.size(); }

  int32_t run(const cod_buffer *given, const cod_result *made, int threads,
              int64_t *nanoseconds) const {
    if (set_ != &kernels()) return COD_NO_KERNEL;  // packed for another instruction set
    std::vector<const uint8_t *> inputs;
    std::vector<uint8_t *> outputs;
    for (size_t i = 0; i < input_bytes_.size(); i++)
      inputs.push_back(static_cast<const uint8_t *>(given[i].data));
    for (size_t i = 0; i < output_bytes_.size(); i++)
      outputs.push_back(static_cast<uint8_t *>(made[i].data));
    const auto done = [this](Arena *used) { give_back(used); };
    const std::unique_ptr<Arena, decltype(done)> arena(take(), done);
    if (!arena) return COD_NO_MEMORY;
    const cod::Run run{arena->data, constants_.data(), inputs.data(), outputs.data(),
                       std::clamp(threads, 1, kMostThreads)};
    int32_t result = COD_OK;
    for (size_t i = 0; i < instructions_.size() && result == COD_OK; i++) {
      const auto start = std::chrono::steady_clock::now();
      result = kinds_[i]->run(instructions_[i], run);
      if (nanoseconds)
        nanoseconds[i] = std::chrono::duration_cast<std::chrono::nanoseconds>(
                             std::chrono::steady_clock::now() - start)
                             .count();
    }
    return result;
  }

  ~Program() {
    while (free_) {
      Arena *next = free_->next;
      delete free_;
      free_ = next;
    }
  }

 private:
  struct Arena {
    explicit Arena(int64_t bytes) : data(static_cast<uint8_t *>(aligned_memory(bytes + 128))) {}
    ~Arena() { std::free(data); }
    uint8_t *data;
    Arena *next = nullptr;
  };

  template <typename Buffer>
  static bool long_enough(const Buffer *given, int64_t count, const std::vector<int64_t> &bytes) {
    if (count != (int64_t)bytes.size() || (count && !given)) return false;
    for (int64_t i = 0; i < count; i++)
      if (given[i].bytes < bytes[(size_t)i] || (bytes[(size_t)i] && !given[i].data)) return false;
    return true;
  }

  bool add(const cod_program_code &code, const cod_instruction &given) {
    const Kind *kind = kind_of(given.kind);
    if (!kind || given.operand_count < kind->writes || given.int_count < 0 ||
        given.float_count < 0 || given.first_operand < 0 || given.first_int < 0 ||
        given.first_float < 0 || given.first_operand > code.operand_count - given.operand_count ||
        given.first_int > code.int_count - given.int_count ||
        given.first_float > code.float_count - given.float_count)
      return false;
    for (int64_t i = 0; i < given.operand_count; i++) {
      const cod_operand &x = operands_[(size_t)(given.first_operand + i)];
      if (x.space == COD_SPACE_NONE) {
        if (i < kind->writes) return false;
        continue;
      }
      const int64_t bytes = bytes_of(code, x);
      const bool writable = x.space == COD_SPACE_ARENA || x.space == COD_SPACE_OUTPUT;
      if (bytes < 0 || !inside(x, bytes) || (i < kind->writes && !writable)) return false;
    }
    Instruction one{given.kind,          operands_.data() + given.first_operand,
                    given.operand_count, ints_.data() + given.first_int,
                    given.int_count,     floats_.data() + given.first_float,
                    given.float_count,   nullptr};
    if (!kind->check(one, Build{constants_.data()})) return false;
    instructions_.push_back(std::move(one));
    kinds_.push_back(kind);
    return true;
  }

  static int64_t bytes_of(const cod_program_code &code, const cod_operand &x) {
    if (x.buffer < 0) return -1;
    switch (x.space) {
      case COD_SPACE_ARENA:
        return x.buffer == 0 ? code.arena_bytes : -1;
      case COD_SPACE_CONSTANT:
        return x.buffer < code.constant_count ? code.constants[x.buffer].bytes : -1;
      case COD_SPACE_INPUT:
        return x.buffer < code.input_count ? code.inputs[x.buffer].bytes : -1;
      case COD_SPACE_OUTPUT:
        return x.buffer < code.output_count ? code.outputs[x.buffer].bytes : -1;
      default:
        return -1;
    }
  }

  // Memory of one run; several threads may run the program, each in its own.
  Arena *take() const {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (free_) {
        Arena *found = free_;
        free_ = found->next;
        return found;
      }
    }
    auto *made = new (std::nothrow) Arena(arena_bytes_);
    if (made && !made->data) {
      delete made;
      return nullptr;
    }
    return made;
  }
  void give_back(Arena *arena) const {
    std::lock_guard<std::mutex> lock(mutex_);
    arena->next = free_;
    free_ = arena;
  }

  const Kernels *set_ = nullptr;
  std::vector<Operand> operands_;
  std::vector<int64_t> ints_;
  std::vector<double> floats_;
  std::vector<const uint8_t *> constants_;
  std::vector<int64_t> input_bytes_, output_bytes_;
  std::vector<Instruction> instructions_;
  std::vector<const Kind *> kinds_;
  int64_t arena_bytes_ = 0;
  mutable std::mutex mutex_;
  mutable Arena *free_ = nullptr;
};

}  // namespace
}  // namespace cod

extern "C" {

int32_t cod_program_build(const cod_program_code *code, void **program, int64_t *wrong) {
  if (!code || !program || !wrong) return COD_BAD_ARGUMENT;
  *program = nullptr;
  try {
    auto made = std::make_unique<cod::Program>();
    const int32_t result = made->build(*code, wrong);
    if (result == COD_OK) *program = made.release();
    return result;
  } catch (const std::bad_alloc &) {
    return COD_NO_MEMORY;
  }
}

void cod_program_free(void *program) { delete static_cast<cod::Program *>(program); }

int32_t cod_program_run(const void *program, const cod_buffer *inputs, int64_t input_count,
                        const cod_result *outputs, int64_t output_count, int32_t threads) {
  return cod_program_profile(program, inputs, input_count, outputs, output_count, threads, nullptr,
                             0);
}

int32_t cod_program_profile(const void *program, const cod_buffer *inputs, int64_t input_count,
                            const cod_result *outputs, int64_t output_count, int32_t threads,
                            int64_t *nanoseconds, int64_t instruction_count) {
  const auto *known = static_cast<const cod::Program *>(program);
  if (!known || !known->takes(inputs, input_count, outputs, output_count)) return COD_BAD_ARGUMENT;
  if (nanoseconds && instruction_count < known->instruction_count()) return COD_BAD_ARGUMENT;
  try {
    return known->run(inputs, outputs, threads, nanoseconds);
  } catch (const std::bad_alloc &) {
    return COD_NO_MEMORY;
  }
}

const char *cod_program_kind(int32_t kind) {
  const cod::Kind *found = cod::kind_of(kind);
  return found ? found->name : nullptr;
}

}  // extern "C"
