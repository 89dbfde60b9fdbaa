/* The mask of a picture, without Python: mask net.codtdq picture.ppm mask.pgm
 *
 * Pictures are binary PPM files (P6, 8 bits), masks PGM (P5). Build it with the shared library:
 *
 *     INCLUDE=$(python -c 'import codtdq.runtime as r; print(r.include_dir())')
 *     LIBRARY=$(python -c 'import codtdq.runtime as r; print(r.library_path())')
 *     cc -std=c99 -I"$INCLUDE" mask.c "$LIBRARY" -Wl,-rpath,"$(dirname "$LIBRARY")" -o mask
 */
#include <stdio.h>
#include <stdlib.h>

#include "codtdq.h"

#define MOST_PIXELS ((size_t)1 << 28)

struct picture {
  unsigned char *pixels;
  size_t height, width;
};

/* One number of a PPM header; comments run from # to the end of a line. */
static int read_number(FILE *file, size_t *number) {
  int c = fgetc(file);
  while (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '#') {
    if (c == '#')
      while (c != '\n' && c != EOF) c = fgetc(file);
    c = fgetc(file);
  }
  if (c < '0' || c > '9') return 0;
  for (*number = 0; c >= '0' && c <= '9'; c = fgetc(file)) {
    *number = *number * 10 + (size_t)(c - '0');
    if (*number > MOST_PIXELS) return 0;
  }
  return 1; /* the one blank behind the last number is read, too */
}

static int read_ppm(const char *path, struct picture *picture) {
  size_t most = 0, bytes;
  FILE *file = fopen(path, "rb");
  picture->pixels = NULL;
  if (!file) return 0;
  if (fgetc(file) == 'P' && fgetc(file) == '6' && read_number(file, &picture->width) &&
      read_number(file, &picture->height) && read_number(file, &most) && most == 255 &&
      picture->width && picture->height && picture->height <= MOST_PIXELS / picture->width) {
    bytes = 3 * picture->height * picture->width;
    picture->pixels = malloc(bytes);
    if (picture->pixels && fread(picture->pixels, 1, bytes, file) != bytes) {
      free(picture->pixels);
      picture->pixels = NULL;
    }
  }
  fclose(file);
  return picture->pixels != NULL;
}

static int write_pgm(const char *path, const unsigned char *mask, size_t height, size_t width) {
  FILE *file = fopen(path, "wb");
  int good;
  if (!file) return 0;
  good = fprintf(file, "P5\n%zu %zu\n255\n", width, height) > 0 &&
         fwrite(mask, 1, height * width, file) == height * width;
  return fclose(file) == 0 && good;
}

int main(int count, char **words) {
  char error[CODTDQ_ERROR_BYTES];
  struct picture picture;
  codtdq_network *network;
  codtdq_shape shape;
  unsigned char *mask;
  size_t pixels;
  int code;
  if (count != 4) {
    fprintf(stderr, "usage: mask net.codtdq picture.ppm mask.pgm\n");
    return 2;
  }
  network = codtdq_open(words[1], 0, error, sizeof error);
  if (!network) {
    fprintf(stderr, "mask: %s\n", error);
    return 2;
  }
  if (!read_ppm(words[2], &picture)) {
    fprintf(stderr, "mask: %s: cannot be read as a binary PPM picture of 8 bits\n", words[2]);
    codtdq_close(network);
    return 2;
  }
  pixels = picture.height * picture.width;
  mask = malloc(pixels);
  code = !mask || codtdq_describe(network, 0, &shape) != CODTDQ_OK;
  if (code) {
    fprintf(stderr, "mask: not enough memory for a mask\n");
  } else {
    printf("%s, %s: input %lld x %lld, %lld bytes for a run\n", codtdq_text(network, "model"),
           codtdq_text(network, "method"), (long long)shape.input[2], (long long)shape.input[3],
           (long long)shape.arena_bytes);
    code = codtdq_predict(network, 0, picture.pixels, 3 * pixels, (int64_t)picture.height,
                          (int64_t)picture.width, mask, pixels, 0, error, sizeof error);
    if (code) fprintf(stderr, "mask: %s\n", error);
  }
  if (!code && !write_pgm(words[3], mask, picture.height, picture.width)) {
    fprintf(stderr, "mask: %s: cannot be written\n", words[3]);
    code = 1;
  }
  free(mask);
  free(picture.pixels);
  codtdq_close(network);
  return code ? 1 : 0;
}
