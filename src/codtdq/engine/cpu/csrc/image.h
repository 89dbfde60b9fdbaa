// Pixels to network input, and logits to masks, as the Python package has it (data/transforms.py
// and evaluation/masks.py): the same bytes as Pillow's bilinear filter on 8-bit pixels, masks that
// differ by the last bit of a sigmoid.
#pragma once
#include <cstdint>

#include "program_file.h"

namespace cod {

struct Pixels {  // RGB
  const uint8_t *data;
  int64_t height, width, row_bytes;
};

// Float planes [3, height, width] of an image: resized, from 0 to 1, minus mean, over deviation.
void to_input(const Pixels &image, const float *mean, const float *deviation, int64_t height,
              int64_t width, float *to);

// A mask [height, width] of bytes from logits [rows, columns]; false where one is not finite.
bool to_mask(const float *logits, int64_t rows, int64_t columns, Postprocess how, int64_t height,
             int64_t width, uint8_t *mask, int64_t mask_row_bytes);

}  // namespace cod
