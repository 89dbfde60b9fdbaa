/* Scores of 8-bit maps: the passes over pixels that codtdq.metrics has in numpy, too.
 *
 * As in codtdq_native.h every buffer comes with its length, and what does not fit is
 * COD_BAD_ARGUMENT before anything is touched. Maps are rows of `width` bytes, `stride` apart.
 */
#ifndef CODTDQ_SCORES_H
#define CODTDQ_SCORES_H

#include "codtdq_native.h"

#define COD_SCORE_LEVELS 256
#define COD_SCORE_LONGEST_REACH 127 /* 2 reach^2 fits int16 */

#ifdef __cplusplus
extern "C" {
#endif

/* A part of a map of bytes; `count`: bytes from the pointer on. */
typedef struct {
  const uint8_t *data;
  int64_t height, width, stride, count;
} cod_map;

/* Object pixels (mask: 0 or 1) of each row and of each column. */
COD_API int32_t cod_score_profiles(const cod_map *mask, uint32_t *rows, int64_t row_count,
                                   uint32_t *columns, int64_t column_count);

/* quarters: [4][2][256] pixels by quarter around (row, column), by mask and by level. */
COD_API int32_t cod_score_histogram(const cod_map *pred, const cod_map *mask, int64_t row,
                                    int64_t column, int64_t *quarters, int64_t count);

/* squared: [height, width] min(squared distance to the nearest object pixel, reach^2). */
COD_API int32_t cod_score_distance(const cod_map *mask, int32_t reach, int16_t *squared,
                                   int64_t count);

/* sum over the background of (pred - low) * discount[squared]; no pixel is below `low`. */
COD_API int32_t cod_score_discounted(const cod_map *pred, const cod_map *mask,
                                     const int16_t *squared, int64_t count, int32_t low,
                                     const double *discount, int64_t discount_count, double *sum);

/* Sum over the object of min(error, mean of the errors around it under a square window), where a
 * background pixel has the error of its nearest object pixel, the leftmost of several, then the
 * topmost. deficit: the errors, zero off the object, over the box (top, left) of the window that
 * `squared` [height, width] belongs to. weights: centre and one side of the symmetric window. */
COD_API int32_t cod_score_missed(const cod_map *deficit, int64_t top, int64_t left,
                                 const int16_t *squared, int64_t height, int64_t width,
                                 int64_t count, const double *weights, int64_t weight_count,
                                 double *sum);

#ifdef __cplusplus
}
#endif
#endif
