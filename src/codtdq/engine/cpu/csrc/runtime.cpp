// The C interface of program files (codtdq.h): files in, masks out, no exception across.
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>

#include "codtdq.h"
#include "image.h"
#include "program_file.h"
#include "source.h"

struct codtdq_network {
  cod::ProgramFile file;
  int64_t constant_bytes = 0;
  codtdq_network(cod::Source &source, int threads) : file(source, threads) {
    for (const auto &one : file.constants) constant_bytes += one.bytes;
  }
};

namespace {

constexpr int64_t kMostPixels = (int64_t)1 << 28;
constexpr int64_t kMostFile = (int64_t)1 << 40;

int threads_for(int32_t wanted) {
  if (wanted > 0) return wanted < 256 ? wanted : 256;
  const unsigned found = std::thread::hardware_concurrency();
  return found ? (int)found : 1;
}

// One line, whatever a file or path has put into it.
void tell(char *error, size_t bytes, const std::string &text) {
  if (!error || !bytes) return;
  size_t at = 0;
  for (; at < text.size() && at + 1 < bytes; at++)
    error[at] = (unsigned char)text[at] < 0x20 || text[at] == 0x7f ? '?' : text[at];
  error[at] = 0;
}

// Runs `body`, which returns a code; turns exceptions into codes and texts.
template <typename F>
int32_t guarded(char *error, size_t bytes, const std::string &prefix, const F &body) {
  tell(error, bytes, "");
  try {
    return body();
  } catch (const cod::Refusal &refusal) {
    tell(error, bytes, prefix + refusal.what());
    return CODTDQ_BAD_FILE;
  } catch (const std::bad_alloc &) {
    tell(error, bytes, prefix + "out of memory");
    return CODTDQ_NO_MEMORY;
  } catch (...) {
    tell(error, bytes, prefix + "the engine failed");
    return CODTDQ_FAILED;
  }
}

cod::File opened(const char *path) {
  cod::File::Handle file(std::fopen(path, "rb"), std::fclose);
  if (!file) throw cod::Refusal("cannot be opened; is there such a file?");
  if (std::fseek(file.get(), 0, SEEK_END)) throw cod::Refusal("cannot be read");
  const int64_t bytes = std::ftell(file.get());
  if (bytes < 0 || bytes > kMostFile || std::fseek(file.get(), 0, SEEK_SET))
    throw cod::Refusal("is not a file that can be read");
  return cod::File(std::move(file), (size_t)bytes);
}

int32_t bad(char *error, size_t bytes, const std::string &text) {
  tell(error, bytes, text);
  return CODTDQ_BAD_ARGUMENT;
}

const cod::ProgramFile::One *find(const codtdq_network *network, int64_t program) {
  if (!network || program < 0 || program >= (int64_t)network->file.programs.size()) return nullptr;
  return &network->file.programs[(size_t)program];
}

int32_t run(const cod::ProgramFile::One &one, const float *input, float *output, int32_t threads,
            char *error, size_t error_bytes) {
  const cod_buffer inputs[] = {{input, one.input_count() * (int64_t)sizeof(float)}};
  const cod_result outputs[] = {{output, one.output_count() * (int64_t)sizeof(float)}};
  switch (cod_program_run(one.program.get(), inputs, 1, outputs, 1, threads_for(threads))) {
    case COD_OK:
      return CODTDQ_OK;
    case COD_NO_MEMORY:
      tell(error, error_bytes,
           "out of memory; a run needs " + std::to_string(one.arena_bytes) + " bytes");
      return CODTDQ_NO_MEMORY;
    case COD_NO_KERNEL:
      tell(error, error_bytes, "another instruction set was selected; open the file again");
      return CODTDQ_FAILED;
    default:
      tell(error, error_bytes, "the engine refused an instruction");
      return CODTDQ_FAILED;
  }
}

}  // namespace

extern "C" {

int32_t codtdq_version(void) { return CODTDQ_VERSION; }

codtdq_network *codtdq_open_memory(const void *data, size_t bytes, int32_t threads, char *error,
                                   size_t error_bytes) {
  codtdq_network *made = nullptr;
  guarded(error, error_bytes, "", [&] {
    if (!data) return bad(error, error_bytes, "no data was given");
    cod::Memory memory(static_cast<const uint8_t *>(data), bytes);
    made = new codtdq_network(memory, threads_for(threads));
    return (int32_t)CODTDQ_OK;
  });
  return made;
}

codtdq_network *codtdq_open(const char *path, int32_t threads, char *error, size_t error_bytes) {
  codtdq_network *made = nullptr;
  if (!path) {
    bad(error, error_bytes, "no path was given");
    return nullptr;
  }
  guarded(error, error_bytes, std::string(path) + ": ", [&] {
    cod::File file = opened(path);
    made = new codtdq_network(file, threads_for(threads));
    return (int32_t)CODTDQ_OK;
  });
  return made;
}

void codtdq_close(codtdq_network *network) { delete network; }

int64_t codtdq_programs(const codtdq_network *network) {
  return network ? (int64_t)network->file.programs.size() : 0;
}

int64_t codtdq_constant_bytes(const codtdq_network *network) {
  return network ? network->constant_bytes : 0;
}

int32_t codtdq_describe(const codtdq_network *network, int64_t program, codtdq_shape *shape) {
  const auto *one = find(network, program);
  if (!one || !shape) return CODTDQ_BAD_ARGUMENT;
  *shape = codtdq_shape{};
  shape->input_axes = (int32_t)one->input.size(), shape->output_axes = (int32_t)one->output.size();
  std::copy(one->input.begin(), one->input.end(), shape->input);
  std::copy(one->output.begin(), one->output.end(), shape->output);
  shape->input_count = one->input_count(), shape->output_count = one->output_count();
  shape->arena_bytes = one->arena_bytes, shape->instructions = one->instructions;
  return CODTDQ_OK;
}

const char *codtdq_text(const codtdq_network *network, const char *key) {
  if (!network || !key) return nullptr;
  const auto found = network->file.metadata.find(key);
  return found == network->file.metadata.end() ? nullptr : found->second.c_str();
}

const char *codtdq_key(const codtdq_network *network, int64_t number) {
  if (!network || number < 0 || number >= (int64_t)network->file.metadata.size()) return nullptr;
  return std::next(network->file.metadata.begin(), number)->first.c_str();
}

int32_t codtdq_run(const codtdq_network *network, int64_t program, const float *input,
                   int64_t input_count, float *output, int64_t output_count, int32_t threads,
                   char *error, size_t error_bytes) {
  return guarded(error, error_bytes, "", [&]() -> int32_t {
    const auto *one = find(network, program);
    if (!one || !input || !output) return bad(error, error_bytes, "no such program, or no buffer");
    if (input_count != one->input_count() || output_count != one->output_count())
      return bad(error, error_bytes,
                 "program " + std::to_string(program) + " takes " +
                     std::to_string(one->input_count()) + " floats and gives " +
                     std::to_string(one->output_count()) + "; found buffers of " +
                     std::to_string(input_count) + " and " + std::to_string(output_count));
    return run(*one, input, output, threads, error, error_bytes);
  });
}

int32_t codtdq_predict(const codtdq_network *network, int64_t program, const uint8_t *pixels,
                       size_t pixel_bytes, int64_t height, int64_t width, uint8_t *mask,
                       size_t mask_bytes, int32_t threads, char *error, size_t error_bytes) {
  return guarded(error, error_bytes, "", [&]() -> int32_t {
    const auto *one = find(network, program);
    if (!one || !pixels || !mask) return bad(error, error_bytes, "no such program, or no buffer");
    if (height < 1 || width < 1 || height > CODTDQ_MOST_SIDE || width > CODTDQ_MOST_SIDE ||
        height * width > kMostPixels)
      return bad(error, error_bytes,
                 "an image of " + std::to_string(height) + " x " + std::to_string(width) +
                     " pixels; accepted: 1 to " + std::to_string(CODTDQ_MOST_SIDE) +
                     " along each side, 2^28 in all");
    if (pixel_bytes != (size_t)(3 * height * width) || mask_bytes != (size_t)(height * width))
      return bad(error, error_bytes,
                 "buffers of " + std::to_string(pixel_bytes) + " and " +
                     std::to_string(mask_bytes) + " bytes; 3 and 1 for each pixel are needed");
    const auto &in = one->input, &out = one->output;
    const bool image =
        in.size() == 4 && in[0] == 1 && in[1] == 3 && out.size() == 4 && out[0] == 1 && out[1] == 1;
    if (!image || network->file.postprocess == cod::Postprocess::kNone)
      return bad(error, error_bytes, "this program makes no mask of one image; use codtdq_run");
    std::vector<float> input((size_t)one->input_count()), logits((size_t)one->output_count());
    const auto &file = network->file;
    cod::to_input({pixels, height, width, 3 * width}, file.mean, file.deviation, in[2], in[3],
                  input.data());
    const int32_t code = run(*one, input.data(), logits.data(), threads, error, error_bytes);
    if (code != CODTDQ_OK) return code;
    if (!cod::to_mask(logits.data(), out[2], out[3], file.postprocess, height, width, mask,
                      width)) {
      tell(error, error_bytes, "the network returned NaN or infinite values; check its weights");
      return CODTDQ_FAILED;
    }
    return CODTDQ_OK;
  });
}

}  // extern "C"
