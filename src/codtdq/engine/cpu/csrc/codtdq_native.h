/* The C interface of the native engine: no torch, no Python, plain pointers and sizes.
 *
 * Every buffer comes with its length (`count`: elements from the pointer on). A call compares them
 * with what it would read and write, and indices with what they choose from, before it touches
 * anything: what does not fit is COD_BAD_ARGUMENT.
 *
 * Numbers that both sides must agree on are defined here once; `cod_constant` lets Python check.
 */
#ifndef CODTDQ_NATIVE_H
#define CODTDQ_NATIVE_H

#include <stdint.h>

#if defined(_WIN32)
#define COD_API __declspec(dllexport)
#else
#define COD_API __attribute__((visibility("default")))
#endif

#define COD_ABI_VERSION 10
#define COD_EPS 1e-8f     /* floor of every radius and step */
#define COD_STD_EPS 1e-12 /* added to every standard deviation */
#define COD_TIE_MARGIN (1.0 - 1.0 / 1048576.0)
#define COD_WEIGHT_OFFSET 8       /* weights are stored as code + 8: nibbles without a sign */
#define COD_MAX_GROUP 128         /* widest activation group */
#define COD_MAX_TRIALS 16         /* multipliers that may be tried */
#define COD_LARGEST_CARRIER 127   /* carriers are -127..127 */
#define COD_LARGEST_MULTIPLIER 15 /* of weights: |p r| <= 120 */
#define COD_LONGEST_SUM 130000    /* products that one 32-bit sum holds */
#define COD_LEAST_STEP 1e-30      /* smaller ones have no reciprocal under a multiplier */

#ifdef __cplusplus
extern "C" {
#endif

enum { COD_ACTIVE_BASE = 0, COD_ACTIVE_C1 = 1, COD_ACTIVE_C2 = 2, COD_ACTIVE_GUARDED = 3 };
enum { COD_INFEASIBLE_C1 = 1, COD_INFEASIBLE_C2 = 2 };
enum { COD_PRE_NONE = 0, COD_PRE_GELU = 1, COD_PRE_RELU = 2 };
enum { COD_OK = 0, COD_BAD_ARGUMENT = 1, COD_NO_MEMORY = 2, COD_NO_KERNEL = 3 };

/* How token groups get their range (paper Eqs. DSTG_clip, dcrp). */
typedef struct {
  int32_t bits;    /* 2..8 */
  int32_t group;   /* channels that share a range */
  int32_t literal; /* Algorithm S1 to the letter */
  int32_t guarded; /* least squared error between base and bound */
  int32_t use_percentile, use_tau, use_zero_ratio;
  int32_t pre; /* COD_PRE_*: applied to x first */
  double percentile, tau, zero_ratio;
} cod_quant_spec;

/* x: rows of channels; strides in floats. One of the two strides is usually 1. */
typedef struct {
  const float *data;
  int64_t rows, channels, row_stride, channel_stride;
  int64_t count; /* floats */
} cod_rows;

/* Results, any of which may be NULL. codes: [rows, code_stride] int8, padding zero.
 * step, radius, active, infeasible: [rows, K]; NaN, NaN, 0, 0 where a value is not finite. x_hat:
 * [rows, channels]. sums: [rows, K] int32, the sum of the codes of each group. */
typedef struct {
  int8_t *codes;
  int64_t code_stride;
  float *step, *radius;
  uint8_t *active, *infeasible;
  float *x_hat;
  int32_t *sums;
  int64_t code_bytes, group_count, value_count; /* codes; the results of groups, each; x_hat */
} cod_quantized;

COD_API int32_t cod_abi_version(void);
COD_API double cod_constant(const char *name);    /* NaN for an unknown name */
COD_API const char *cod_isa(void);                /* instruction set in use */
COD_API const char *cod_available(void);          /* those that this machine can run */
COD_API int32_t cod_select(const char *isa);      /* COD_OK or COD_NO_KERNEL */
COD_API const char *cod_refusal(const char *isa); /* why a set does not run here; "" if it does */

/* Run on the threads of a GNU OpenMP runtime that is loaded already: the address of its
 * GOMP_parallel, or NULL for threads of our own. */
COD_API void cod_use_team(void *gomp_parallel);

/* Let the C library keep up to so many freed bytes instead of giving them back at once: large maps
 * then reuse pages that are there already. COD_NO_KERNEL where it has no such setting. */
COD_API int32_t cod_keep_memory(int64_t bytes);

COD_API int32_t cod_quantize_groups(const cod_rows *x, const cod_quant_spec *spec,
                                    const cod_quantized *out, int32_t threads);

/* Largest magnitude of the whole tensor (per_channel = 0, out [1]) or of each channel (out
 * [channels]). NaN where a NaN or an infinity was seen. */
COD_API int32_t cod_absmax(const cod_rows *x, int32_t per_channel, float *out, int64_t count,
                           int32_t threads);

/* What is done to a row before it is quantized: y = R((x[order] - shift) / scale), each part NULL
 * or 0 if it is left out; shift and scale are in the new order. R: a 32-point Hadamard rotation of
 * whole blocks. */
typedef struct {
  const float *shift, *scale, *inverse; /* inverse: 1 / scale */
  const int32_t *order;                 /* indices of channels */
  int64_t hadamard;
  int64_t count; /* of each vector; read if there is one */
} cod_transform;

/* COD_ACT_GATED_GELU, of depthwise convolutions only: GELU of the first half of the channels times
 * the second half. */
enum { COD_ACT_NONE = 0, COD_ACT_GELU = 1, COD_ACT_RELU = 2, COD_ACT_GATED_GELU = 3 };

typedef struct {
  float *data;
  int64_t row_stride;
  const float *bias; /* may be NULL */
  int32_t activation;
  int64_t count, bias_count;
} cod_output;

/* Geometry of a convolution over maps [batch, in_h, in_w] of tokens. Linear: kernel 1x1. */
typedef struct {
  int64_t batch, in_h, in_w, out_h, out_w;
  int32_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
} cod_geometry;

/* ---- Carriers: one exact product of signed bytes for every scheme.
 *
 * Inputs. a[t, k] in -127..127 stands for u a; u is a float32 for each row, or for `unit_rows` rows
 * (an image). a = m (q - z): q the code, z the zero-point, m a whole multiplier 1..M of its group
 * or channel, M = floor(127 / largest |q - z|). Of float32 steps s:
 *   u = max(s) * (1 / M);  m = clamp(ceil(s * (1 / u)), 1, M), floor where DCRP bounds the step;
 *   q = clamp(rint(x * (1 / (u m))) + z, ...);  each operation rounded, ties to even.
 * Rows are padded with zeros to cod_carrier_depth(channels) bytes. Where a value is not finite, u
 * is NaN and a is 0.
 *
 * Weights. w = v[n] p[n, g] r[n, k]: r in -8..7 (nibbles in memory), p whole, 1 <= |p| <= 15, v
 * float32; or 8 bits: r in -127..127 and p = 1.
 *
 * Products. y[t, n] = float(sum a p r) * (u[t] * v[n]) + b[n]: an exact 32-bit sum and three
 * rounded float32 operations (two without a bias), the same with every instruction set and any
 * number of threads. */

/* Bytes of a row: a multiple of 8 up to 16 channels, else of 32. */
COD_API int64_t cod_carrier_depth(int64_t channels);

typedef struct {
  const int8_t *data; /* [rows, stride] */
  int64_t stride;
  const float *unit; /* [ceil(rows / unit_rows)], or [..., unit_stride] */
  int64_t unit_rows;
  int64_t unit_stride; /* 0: one for all channels; else one for each (depthwise only) */
  int64_t bytes, unit_count;
} cod_carrier;

/* multiplier: [rows, K] (groups) or [1] or [channels] (fixed steps); 0 where there is none; may be
 * NULL. */
typedef struct {
  int8_t *data;
  int64_t stride;
  float *unit;
  int64_t unit_rows;
  uint8_t *multiplier;
  int64_t unit_stride; /* 0: units have no channels */
  int64_t bytes, unit_count, multiplier_count;
} cod_carried;

/* Groups from their least to their largest value, zero inside (asymmetric, bits 2..7), or under
 * their largest magnitude (bits 2..8). The multipliers m, m - 1, ... are tried under the zero-point
 * of the first; the least sum of squared errors wins, values that fall to zero counting
 * 1 + zero_weight times. */
typedef struct {
  int32_t bits, group;
  int32_t trials; /* 1..COD_MAX_TRIALS */
  int32_t asymmetric;
  float zero_weight;
  cod_transform transform; /* of every row, first */
} cod_carry_spec;

/* Token groups: symmetric under DCRP, or asymmetric (bits 2..7; largest and least value only). With
 * unit_rows > 1 the largest step of so many rows makes their unit. */
COD_API int32_t cod_carry_groups(const cod_rows *x, const cod_quant_spec *spec, int32_t asymmetric,
                                 const cod_carried *out, int32_t threads);

/* Token groups (out->unit_stride is 0), and groups of pixels of a channel: unit_rows pixels are an
 * image, units [images] or, with unit_stride, [images, unit_stride]; multiplier [images
 * ceil(unit_rows / group), channels]. */
COD_API int32_t cod_carry_tokens(const cod_rows *x, const cod_carry_spec *spec,
                                 const cod_carried *out, int32_t threads);
COD_API int32_t cod_carry_pixels(const cod_rows *x, const cod_carry_spec *spec,
                                 const cod_carried *out, int32_t threads);

/* Given steps, count = 1 or channels; M = 1 for a single one. zero: zero-points 0..2^bits - 1, or
 * NULL: symmetric. 8 bits with a zero-point (count = 1): q - z in -254..254 is the sum of bytes c
 * and channels + c of a row. unit_rows: all rows, or what one NaN may reach. With unit_stride the
 * steps of channels are units. A NaN among the steps makes every unit (with unit_stride: that of
 * its channel) NaN; others must be at least COD_LEAST_STEP. */
COD_API int32_t cod_carry_fixed(const cod_rows *x, int32_t bits, const float *step,
                                const int32_t *zero, int64_t count, int32_t pre,
                                const cod_carried *out, int32_t threads);

/* Weights in panels for the set in use: describe, provide zeroed memory aligned to 64 bytes, pack.
 * codes: int8 [outputs, taps, inputs]; multiplier: int8 [outputs, taps, ceil(inputs / group)], or
 * NULL: 1; factor: v [outputs]. group: a multiple of 16, or at least all inputs, or 0 (the same).
 */
typedef struct {
  int64_t outputs, taps, inputs, depth;
  int64_t panels, panel_bytes;
  int64_t packed_bytes, multiplier_bytes, factor_count; /* memory that the arrays need */
  int32_t bits;                                         /* 4 or 8 */
  int32_t group, run, columns;
  uint8_t *packed;    /* [panels][taps][depth / unit][columns][unit] nibbles or bytes */
  int8_t *multiplier; /* [panels][taps][depth / run][columns]; no bytes: all are 1 */
  float *factor;      /* [panels][columns] */
} cod_carrier_weight;
COD_API int32_t cod_carrier_weight_describe(int64_t outputs, int64_t taps, int64_t inputs,
                                            int32_t bits, int32_t group, int32_t multiplied,
                                            cod_carrier_weight *weight);
COD_API int32_t cod_carrier_weight_pack(const int8_t *codes, int64_t code_count,
                                        const int8_t *multiplier, int64_t multiplier_count,
                                        const float *factor, int64_t factor_count,
                                        cod_carrier_weight *weight, int32_t threads);
/* The same of 4-bit codes in two's complement, two to a byte, the first in the low half: rows of
 * ceil(taps * inputs / 2) bytes, one for each output. */
COD_API int32_t cod_carrier_weight_pack_nibbles(const uint8_t *nibbles, int64_t byte_count,
                                                const int8_t *multiplier, int64_t multiplier_count,
                                                const float *factor, int64_t factor_count,
                                                cod_carrier_weight *weight, int32_t threads);
/* The inverse: memory of the same sizes; multiplier is NULL where there are none. */
COD_API int32_t cod_carrier_weight_unpack(const cod_carrier_weight *weight, int8_t *codes,
                                          int64_t code_count, int8_t *multiplier,
                                          int64_t multiplier_count, float *factor,
                                          int64_t factor_count);

/* Linear (kernel 1x1) or convolution; padding is carrier 0. Kernels of several taps need units of
 * whole images: x->unit_rows = in_h * in_w. */
COD_API int32_t cod_carrier_conv(const cod_carrier *x, const cod_geometry *geometry,
                                 const cod_carrier_weight *weight, const cod_output *y,
                                 int32_t threads);

/* weight: int8 [taps, channels] in -127..127; factor: v [channels]; at most 1024 taps, units of
 * whole images. y[t, c] = float(sum a w) * (u * v[c]) + b[c]. */
COD_API int32_t cod_carrier_depthwise(const cod_carrier *x, const cod_geometry *geometry,
                                      int64_t channels, const int8_t *weight, int64_t weight_count,
                                      const float *factor, int64_t factor_count,
                                      const cod_output *y, int32_t threads);

/* Products of attention (instruction `attention` of programs): float32, or exact ones of 16-bit
 * integers: queries and keys with up to 13 bits and a sign, exponentials with 14 bits, values with
 * 11 bits and a sign. */
enum { COD_ATTENTION_FLOAT = 0, COD_ATTENTION_INT8 = 1 };

/* Maps x [batch, height, width, channels] without gaps, offsets [batch, 18, height, width] as pairs
 * (dy, dx) of pixels, at any strides (in floats). */
typedef struct {
  int64_t batch, height, width, channels;
  int64_t offset_image, offset_channel, offset_row, offset_column;
  int64_t map_count, offset_count; /* floats of x and of the offsets */
} cod_deform;

/* Deformable 3x3 convolution: y = bilinear samples (zero outside the map) [tokens, 9 channels]
 * times a weight [9 channels, outputs] that cod_float_pack has packed. Sums run in one order,
 * whatever the number of threads. */
COD_API int32_t cod_deform_conv(const float *x, const float *offsets, const cod_deform *shape,
                                const float *packed, int64_t packed_count, int64_t outputs,
                                const cod_output *y, int32_t threads);

/* ---- Programs: a whole forward pass in one call. program.h has the contract. */

enum {
  COD_SPACE_NONE = 0,
  COD_SPACE_ARENA = 1,
  COD_SPACE_CONSTANT = 2,
  COD_SPACE_INPUT = 3,
  COD_SPACE_OUTPUT = 4
};
enum { COD_TYPE_F32 = 0, COD_TYPE_I8 = 1, COD_TYPE_U8 = 2, COD_TYPE_I32 = 3, COD_TYPE_I64 = 4 };
#define COD_MAX_AXES 8

typedef struct {
  int32_t space, buffer; /* buffer: which one of the space */
  int32_t type, ndim;
  int64_t offset; /* bytes, a multiple of the type's size */
  int64_t shape[COD_MAX_AXES], stride[COD_MAX_AXES];
} cod_operand;

/* Ranges of the arrays of a program. */
typedef struct {
  int32_t kind;
  int32_t operand_count, int_count, float_count;
  int64_t first_operand, first_int, first_float;
} cod_instruction;

typedef struct {
  const void *data; /* constants and inputs of a run; of inputs and outputs of code: NULL */
  int64_t bytes;
} cod_buffer;

typedef struct {
  void *data;
  int64_t bytes;
} cod_result;

typedef struct {
  const cod_instruction *instructions;
  const cod_operand *operands;
  const int64_t *ints;
  const double *floats;
  int64_t instruction_count, operand_count, int_count, float_count;
  const cod_buffer *constants, *inputs, *outputs; /* constants: aligned to 64 bytes */
  int64_t constant_count, input_count, output_count;
  int64_t arena_bytes;
} cod_program_code;

/* Checks the code and keeps a copy of it (not of the constants). COD_BAD_ARGUMENT: `wrong` is the
 * number of the first instruction that does not fit, or -1. A program belongs to the instruction
 * set that was in use, and may run in several threads at once. */
COD_API int32_t cod_program_build(const cod_program_code *code, void **program, int64_t *wrong);
COD_API void cod_program_free(void *program);
/* COD_BAD_ARGUMENT, before anything is read or written: not as many buffers as the code has, or one
 * that is shorter than there. */
COD_API int32_t cod_program_run(const void *program, const cod_buffer *inputs, int64_t input_count,
                                const cod_result *outputs, int64_t output_count, int32_t threads);
/* The same, and nanoseconds of each instruction, of which there are `instruction_count`. */
COD_API int32_t cod_program_profile(const void *program, const cod_buffer *inputs,
                                    int64_t input_count, const cod_result *outputs,
                                    int64_t output_count, int32_t threads, int64_t *nanoseconds,
                                    int64_t instruction_count);
COD_API const char *cod_program_kind(int32_t kind); /* its name, or NULL */

/* Float weights [depth, outputs] at any strides, in panels for the set in use: how many floats they
 * take (aligned to 64 bytes; 0 for sizes that nothing holds), and how they get there. */
COD_API int64_t cod_float_packed(int64_t depth, int64_t outputs);
COD_API int32_t cod_float_pack(const float *w, int64_t count, int64_t depth, int64_t outputs,
                               int64_t depth_stride, int64_t output_stride, float *packed,
                               int64_t packed_count);
/* The inverse: weights [depth, outputs] without gaps. */
COD_API int32_t cod_float_unpack(const float *packed, int64_t packed_count, int64_t depth,
                                 int64_t outputs, float *w, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
