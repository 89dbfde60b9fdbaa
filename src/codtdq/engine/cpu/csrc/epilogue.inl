// The plain way out of a tile: any number of rows and columns, from sums in `acc`.

namespace {

static void store_tile(const cod::Epilogue &out, int tile_columns) {
  for (int r = 0; r < out.rows; r++) {
    const float *acc = out.acc + r * tile_columns;
    float *y = out.y + r * out.stride;
    for (int j = 0; j < out.columns; j++) {
      float value = acc[j];
      if (out.scale) value *= out.scale[j];
      if (out.bias) value += out.bias[j];
      y[j] = value;
    }
  }
}

}  // namespace
