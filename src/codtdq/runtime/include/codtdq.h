/* COD-TDQ: masks from program files, in C. A file comes from `codtdq export --to program`.
 *
 *     char error[CODTDQ_ERROR_BYTES];
 *     codtdq_network *network = codtdq_open("net.codtdq", 0, error, sizeof error);
 *     if (!network) { fprintf(stderr, "%s\n", error); return 1; }
 *     codtdq_predict(network, 0, pixels, pixel_bytes, height, width, mask, mask_bytes, 0, error,
 *                    sizeof error);
 *     codtdq_close(network);
 *
 * Threads. Any number of threads may use one network at once, each with its own buffers;
 * `codtdq_close` comes after all of them. The arena of a run is kept for the next one: as many are
 * made as ran at once.
 *
 * Errors. A function that fails says why in one line of `error`, cut to `error_bytes` (0: nowhere),
 * and returns NULL or a code other than CODTDQ_OK. Nothing is written beyond the lengths given, no
 * C++ exception leaves the library, and an output buffer is undefined after a failure. Files are
 * checked whole before use: they may come from anywhere.
 */
#ifndef CODTDQ_H
#define CODTDQ_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define CODTDQ_API
#else
#define CODTDQ_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CODTDQ_VERSION 1 /* of this interface */
#define CODTDQ_ERROR_BYTES 256
#define CODTDQ_MOST_AXES 8
#define CODTDQ_MOST_SIDE 65536 /* pixels of an image along each side */

enum {
  CODTDQ_OK = 0,
  CODTDQ_BAD_ARGUMENT = 1, /* a NULL, a size that does not fit */
  CODTDQ_NO_MEMORY = 2,
  CODTDQ_BAD_FILE = 3, /* unreadable, damaged, of another kind or version */
  CODTDQ_FAILED = 4    /* the network gave no mask: values that are not finite */
};

typedef struct codtdq_network codtdq_network;

CODTDQ_API int32_t codtdq_version(void); /* CODTDQ_VERSION of the library */

/* threads: that unpack the weights, at most (0: one for each processor). */
CODTDQ_API codtdq_network *codtdq_open(const char *path, int32_t threads, char *error,
                                       size_t error_bytes);
/* The same of bytes in memory, which may go afterwards. */
CODTDQ_API codtdq_network *codtdq_open_memory(const void *data, size_t bytes, int32_t threads,
                                              char *error, size_t error_bytes);
CODTDQ_API void codtdq_close(codtdq_network *network); /* NULL is nothing to close */

/* A file has one program for each shape of input that it takes; the first is meant for images. */
typedef struct {
  int32_t input_axes, output_axes;
  int64_t input[CODTDQ_MOST_AXES];   /* batch, channels, height, width */
  int64_t output[CODTDQ_MOST_AXES];  /* batch, 1, rows, columns: logits */
  int64_t input_count, output_count; /* floats */
  int64_t arena_bytes;               /* memory of a run */
  int64_t instructions;
} codtdq_shape;

CODTDQ_API int64_t codtdq_programs(const codtdq_network *network);
CODTDQ_API int32_t codtdq_describe(const codtdq_network *network, int64_t program,
                                   codtdq_shape *shape);
CODTDQ_API int64_t codtdq_constant_bytes(const codtdq_network *network); /* weights in memory */

/* What the file says of itself (model, method, ...): the text of a key, and the keys by number;
 * NULL where there is none. Texts live as long as the network. */
CODTDQ_API const char *codtdq_text(const codtdq_network *network, const char *key);
CODTDQ_API const char *codtdq_key(const codtdq_network *network, int64_t number);

/* input: float32 [batch, channels, height, width] without gaps, output: logits; counts in floats.
 * threads: at most (0: one for each processor). */
CODTDQ_API int32_t codtdq_run(const codtdq_network *network, int64_t program, const float *input,
                              int64_t input_count, float *output, int64_t output_count,
                              int32_t threads, char *error, size_t error_bytes);

/* pixels: RGB bytes, rows without gaps, of any height and width; mask: a byte for each pixel, 0 to
 * 255. program: one of batch 1. */
CODTDQ_API int32_t codtdq_predict(const codtdq_network *network, int64_t program,
                                  const uint8_t *pixels, size_t pixel_bytes, int64_t height,
                                  int64_t width, uint8_t *mask, size_t mask_bytes, int32_t threads,
                                  char *error, size_t error_bytes);

#ifdef __cplusplus
}
#endif
#endif
