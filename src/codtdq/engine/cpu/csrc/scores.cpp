// Scores of 8-bit maps, in passes over their pixels. Plain code for every machine: reading the
// files takes longer than what is left here.
#include <algorithm>
#include <cstring>
#include <exception>
#include <vector>

#include "codtdq_scores.h"
#include "spans.h"

namespace {

constexpr int kTables = 4;  // neighbours of equal level would wait for each other in one table

bool valid(const cod_map *map) {
  return map && map->data && map->height >= 1 && map->width >= 1 && map->stride >= map->width &&
         cod::holds(map->count, {{map->height, map->stride}, {map->width, 1}});
}

bool alike(const cod_map *one, const cod_map *other) {
  return valid(one) && valid(other) && one->height == other->height && one->width == other->width;
}

const uint8_t *row_of(const cod_map *map, int64_t y) { return map->data + y * map->stride; }

// Pixels [first, last) of a row, by mask and level.
void tally(const uint8_t *pred, const uint8_t *mask, int64_t first, int64_t last,
           uint32_t (*tables)[2 * COD_SCORE_LEVELS]) {
  int64_t x = first;
  for (; x + kTables <= last; x += kTables)
    for (int t = 0; t < kTables; t++) tables[t][(mask[x + t] & 1) << 8 | pred[x + t]]++;
  for (; x < last; x++) tables[0][(mask[x] & 1) << 8 | pred[x]]++;
}

// ---- Distances

typedef int16_t Lanes __attribute__((vector_size(16)));
constexpr int kLanes = 8, kParts = 4, kTile = kLanes * kParts;
constexpr int kSteps = 4;  // between looks at whether a tile is settled

inline Lanes load(const int16_t *at) {
  Lanes found;
  std::memcpy(&found, at, sizeof found);
  return found;
}

inline Lanes least(Lanes a, Lanes b) { return a < b ? a : b; }

// Distance to the nearest object pixel of the same column, at most `reach`.
void along_columns(const cod_map *mask, uint8_t reach, uint8_t *out) {
  const int64_t height = mask->height, width = mask->width;
  const auto step = [&](const uint8_t *from, uint8_t *to) {
    for (int64_t x = 0; x < width; x++) {
      const uint8_t next = (uint8_t)(from[x] + 1);
      to[x] = std::min(to[x], next);
    }
  };
  for (int64_t y = 0; y < height; y++) {
    const uint8_t *object = row_of(mask, y);
    uint8_t *row = out + y * width;
    for (int64_t x = 0; x < width; x++) row[x] = object[x] ? 0 : reach;
    if (y) step(row - width, row);
  }
  for (int64_t y = height - 2; y >= 0; y--) step(out + (y + 1) * width, out + y * width);
}

// min over k >= nearest of source[x + k] + k^2 of a tile; nothing below `lowest` is still to come.
void settle(const int16_t *source, int reach, int nearest, int lowest, int16_t *out) {
  Lanes best[kParts];
  for (int p = 0; p < kParts; p++) best[p] = load(source + p * kLanes);
  for (int k = nearest; k < reach; k++) {
    if ((k - nearest) % kSteps == 0) {
      Lanes most = best[0];
      for (int p = 1; p < kParts; p++) most = most > best[p] ? most : best[p];
      int16_t highest = most[0];
      for (int l = 1; l < kLanes; l++) highest = std::max(highest, (int16_t)most[l]);
      if (lowest + k * k >= highest) break;
    }
    const Lanes cost = Lanes{} + (int16_t)(k * k);
    for (int p = 0; p < kParts; p++) {
      const int16_t *at = source + p * kLanes;
      best[p] = least(best[p], least(load(at - k), load(at + k)) + cost);
    }
  }
  std::memcpy(out, best, sizeof best);
}

void distances(const cod_map *mask, int reach, int16_t *squared) {
  const int64_t height = mask->height, width = mask->width;
  const int16_t limit = (int16_t)(reach * reach);
  std::vector<uint8_t> near((size_t)(height * width));
  along_columns(mask, (uint8_t)reach, near.data());
  const int64_t tiles = (width + kTile - 1) / kTile;
  std::vector<int16_t> source((size_t)(tiles * kTile + 2 * reach), limit);
  std::vector<int16_t> settled((size_t)(tiles * kTile));
  for (int64_t y = 0; y < height; y++, squared += width) {
    const uint8_t *row = near.data() + y * width;
    uint8_t least_row = (uint8_t)reach;
    for (int64_t x = 0; x < width; x++) {
      source[(size_t)(reach + x)] = (int16_t)(row[x] * row[x]);
      least_row = std::min(least_row, row[x]);
    }
    if (least_row == reach) {
      std::fill(squared, squared + width, limit);
      continue;
    }
    // Columns [first, last) see the object; from a tile beside them the way there is skipped.
    int64_t first = 0, last = width;
    while (row[first] == reach) first++;
    while (row[last - 1] == reach) last--;
    for (int64_t x = 0; x < tiles * kTile; x += kTile) {
      const int64_t gap = std::max(first - (x + kTile - 1), x - (last - 1));
      settle(source.data() + reach + x, reach, (int)std::clamp<int64_t>(gap, 1, reach),
             least_row * least_row, settled.data() + x);
    }
    std::copy(settled.begin(), settled.begin() + width, squared);
  }
}

// ---- Missed errors

// Offsets of each squared length that the window can hold, the preferred first.
struct Offsets {
  struct Step {
    int row, column;
  };
  std::vector<std::vector<Step>> of;
  explicit Offsets(int radius) : of((size_t)(2 * radius * radius + 1)) {
    const int longest = 2 * radius * radius;
    for (int column = -longest; column <= longest; column++)
      for (int row = -longest; row <= longest; row++)
        if (row * row + column * column <= longest)
          of[(size_t)(row * row + column * column)].push_back({row, column});
  }
};

// The errors with a margin of background, each pixel of which has the error of its nearest object
// pixel; what lies off the window has none.
struct Spread {
  int radius, margin;
  int64_t height, width, stride;
  std::vector<uint8_t> errors;

  Spread(const cod_map *deficit, int64_t top, int64_t left, const int16_t *squared,
         int64_t window_height, int64_t window_width, int radius)
      : radius(radius),
        margin(radius),
        height(deficit->height),
        width(deficit->width),
        stride(width + 2 * margin),
        errors((size_t)((height + 2 * margin) * stride)) {
    const int longest = 2 * radius * radius;
    const Offsets offsets(radius);
    const auto distance = [&](int64_t y, int64_t x) {
      return squared[(top + y) * window_width + left + x];
    };
    for (int64_t y = 0; y < height; y++) std::memcpy(at(y, 0), row_of(deficit, y), (size_t)width);
    const int64_t first = std::max<int64_t>(-margin, -left);
    const int64_t last = std::min(width + margin, window_width - left);
    for (int64_t y = std::max<int64_t>(-margin, -top);
         y < std::min(height + margin, window_height - top); y++)
      for (int64_t x = first; x < last; x++) {
        const int norm = distance(y, x);
        if (norm <= 0 || norm > longest) continue;
        for (const Offsets::Step &step : offsets.of[(size_t)norm]) {
          const int64_t row = y + step.row, column = x + step.column;
          if (row < 0 || row >= height || column < 0 || column >= width || distance(row, column))
            continue;
          *at(y, x) = row_of(deficit, row)[column];
          break;
        }
      }
  }

  uint8_t *at(int64_t y, int64_t x) { return errors.data() + (y + margin) * stride + x + margin; }
};

// Rows are filtered down, then across; sums of neighbours first, as the definition has it.
double windowed(const cod_map *deficit, Spread &spread, const double *weights) {
  const int radius = spread.radius;
  std::vector<double> down((size_t)spread.stride), mean((size_t)spread.width);
  double total = 0;
  for (int64_t y = 0; y < spread.height; y++) {
    const uint8_t *error = row_of(deficit, y);
    int64_t first = 0, last = spread.width;
    while (first < last && !error[first]) first++;
    while (last > first && !error[last - 1]) last--;
    if (first == last) continue;
    const int64_t from = first - radius, length = last - first + 2 * radius;
    for (int64_t x = 0; x < length; x++) down[(size_t)x] = weights[0] * spread.at(y, from)[x];
    for (int k = 1; k <= radius; k++) {
      const uint8_t *above = spread.at(y - k, from), *below = spread.at(y + k, from);
      for (int64_t x = 0; x < length; x++)
        down[(size_t)x] += (double)(above[x] + below[x]) * weights[k];
    }
    const double *line = down.data() + radius;
    for (int64_t x = 0; x < last - first; x++) mean[(size_t)x] = weights[0] * line[x];
    for (int k = 1; k <= radius; k++)
      for (int64_t x = 0; x < last - first; x++)
        mean[(size_t)x] += (line[x - k] + line[x + k]) * weights[k];
    double sums[kTables] = {};
    for (int64_t x = 0; x < last - first; x++)
      sums[x % kTables] += std::min(mean[(size_t)x], (double)error[first + x]);
    total += (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
  return total;
}

}  // namespace

extern "C" int32_t cod_score_profiles(const cod_map *mask, uint32_t *rows, int64_t row_count,
                                      uint32_t *columns, int64_t column_count) {
  if (!valid(mask) || !rows || !columns || row_count < mask->height || column_count < mask->width)
    return COD_BAD_ARGUMENT;
  std::fill(columns, columns + mask->width, 0u);
  for (int64_t y = 0; y < mask->height; y++) {
    const uint8_t *object = row_of(mask, y);
    uint32_t sum = 0;
    for (int64_t x = 0; x < mask->width; x++) sum += object[x];
    for (int64_t x = 0; sum && x < mask->width; x++) columns[x] += object[x];
    rows[y] = sum;
  }
  return COD_OK;
}

extern "C" int32_t cod_score_histogram(const cod_map *pred, const cod_map *mask, int64_t row,
                                       int64_t column, int64_t *quarters, int64_t count) {
  constexpr int kBins = 2 * COD_SCORE_LEVELS;
  if (!alike(pred, mask) || !quarters || count < 4 * kBins || row < 0 || row > pred->height ||
      column < 0 || column > pred->width || pred->height > INT32_MAX / pred->width)
    return COD_BAD_ARGUMENT;
  std::fill(quarters, quarters + 4 * kBins, (int64_t)0);
  for (int below = 0; below < 2; below++) {
    uint32_t tables[2][kTables][kBins] = {};
    for (int64_t y = below ? row : 0; y < (below ? pred->height : row); y++) {
      tally(row_of(pred, y), row_of(mask, y), 0, column, tables[0]);
      tally(row_of(pred, y), row_of(mask, y), column, pred->width, tables[1]);
    }
    for (int right = 0; right < 2; right++)
      for (int t = 0; t < kTables; t++)
        for (int bin = 0; bin < kBins; bin++)
          quarters[(2 * below + right) * kBins + bin] += tables[right][t][bin];
  }
  return COD_OK;
}

extern "C" int32_t cod_score_distance(const cod_map *mask, int32_t reach, int16_t *squared,
                                      int64_t count) try {
  if (!valid(mask) || !squared || reach < 1 || reach > COD_SCORE_LONGEST_REACH ||
      !cod::fills(count, mask->height, mask->width))
    return COD_BAD_ARGUMENT;
  distances(mask, reach, squared);
  return COD_OK;
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}

extern "C" int32_t cod_score_discounted(const cod_map *pred, const cod_map *mask,
                                        const int16_t *squared, int64_t count, int32_t low,
                                        const double *discount, int64_t discount_count,
                                        double *sum) {
  if (!alike(pred, mask) || !squared || !discount || !sum || discount_count < 1 ||
      !cod::fills(count, pred->height, pred->width))
    return COD_BAD_ARGUMENT;
  double sums[kTables] = {};
  const int64_t last = discount_count - 1;
  for (int64_t y = 0; y < pred->height; y++, squared += pred->width) {
    const uint8_t *level = row_of(pred, y), *object = row_of(mask, y);
    for (int64_t x = 0; x < pred->width; x++) {
      const int excess = object[x] ? 0 : level[x] - low;
      const int64_t at = std::min<int64_t>(std::max<int64_t>(squared[x], 0), last);
      sums[x % kTables] += discount[at] * excess;
    }
  }
  *sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return COD_OK;
}

extern "C" int32_t cod_score_missed(const cod_map *deficit, int64_t top, int64_t left,
                                    const int16_t *squared, int64_t height, int64_t width,
                                    int64_t count, const double *weights, int64_t weight_count,
                                    double *sum) try {
  constexpr int64_t kMostRadius = 16;
  if (!valid(deficit) || !squared || !weights || !sum || top < 0 || left < 0 || height < 1 ||
      width < 1 || !cod::fills(count, height, width) || top > height - deficit->height ||
      left > width - deficit->width || weight_count < 1 || weight_count > kMostRadius + 1)
    return COD_BAD_ARGUMENT;
  Spread spread(deficit, top, left, squared, height, width, (int)weight_count - 1);
  *sum = windowed(deficit, spread, weights);
  return COD_OK;
} catch (const std::exception &) {
  return COD_NO_MEMORY;
}
