/* Weights of any kind: their numbers, and eight rows at a time. */
#ifndef RONDO_WEIGHTS_H
#define RONDO_WEIGHTS_H
#include "gemm/product.h"

/* Kinds of weights that a KV cache does not have. */
enum { INT4 = FP8 + 1, MXFP4 };
/* BYTES of a row are read at once; COLUMNS columns are multiplied together. */
enum { BYTES = 16, COLUMNS = 8, SPAN = 256, LARGEST = 32767 };

/* A weight [N, K] of a kind: F32 and BF16 have data only. `whole` if x is rounded to int8. */
typedef struct {
    const void *data, *scales;
    const uint8_t *zeros;
    const int64_t *order;
    int64_t kind, group, block, whole;
} Weight;

static inline int is_float(const Weight *w) { return w->kind == F32 || w->kind == BF16; }
static inline int is_integer(const Weight *w) { return !is_float(w) && w->kind != FP8; }

/* Columns in BYTES of a row, and bytes of a row. */
static inline int64_t step_of(int64_t kind) { return kind == INT8 ? BYTES : 2 * BYTES; }
static inline int64_t bytes_of(int64_t kind, int64_t K) {
    return kind == F32 ? 4 * K : kind == BF16 ? 2 * K : kind == INT8 || kind == FP8 ? K : K / 2;
}

static inline int64_t least_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }
static inline int64_t span_of(const Weight *w) { return w->whole ? w->group : least(w->group, SPAN); }
static inline int64_t pieces_of(const Weight *w, int64_t K) {
    return K / w->group * ((w->group + span_of(w) - 1) / span_of(w));
}

static const int8_t E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
enum { E2M1_MOST = 12 };

/* The value of a byte of e8m0. */
static inline float power_of(uint32_t code) { return as_float(code == 255 ? 0x7fc00000 : code ? code << 23 : 1u << 22); }

static inline float scale_at(const Weight *w, int64_t i) {
    return w->kind == MXFP4 ? power_of(((const uint8_t *)w->scales)[i]) : ((const float *)w->scales)[i];
}

/* Number k of row n, without its scale: twice that of e2m1. */
static inline float number_at(const Weight *w, int64_t K, int64_t n, int64_t k, int64_t zero) {
    if (w->kind == FP8) return from_fp8(((const uint8_t *)w->data)[n * K + k]);
    if (w->kind == INT8) return ((const int8_t *)w->data)[n * K + k];
    const int code = ((const uint8_t *)w->data)[(n * K + k) / 2] >> (k % 2 ? 4 : 0) & 15;
    return w->kind == INT4 ? (float)(code - zero) : E2M1[code];
}

static inline int64_t scale_index(const Weight *w, int64_t K, int64_t n) { return n / w->block * (K / w->group); }

/* A row of a weight as floats, columns in its own order. */
static void widen_row(const Weight *w, int64_t K, int64_t n, float *to) {
    for (int64_t g = 0, at = scale_index(w, K, n); g < K / w->group; g++, at++) {
        const float scale = scale_at(w, at) * (w->kind == MXFP4 ? 0.5f : 1.0f);
        const int64_t zero = w->zeros ? w->zeros[at] : 8;
        int64_t k = g * w->group;
        const int64_t end = k + w->group;
        if (w->kind == FP8)
            for (; k + 8 <= end; k += 8) {
                eight_fp8((const uint8_t *)w->data + n * K + k, to + k);
                *(Vec *)(to + k) *= scale;
            }
        for (; k < end; k++) to[k] = number_at(w, K, n, k, zero) * scale;
    }
}

/* Eight rows of a weight: their addresses, and their scales and zeros, grouped by group of columns. Rows beyond the
 * last repeat it. */
typedef struct {
    const uint8_t *rows[COLUMNS], *next;
    const float *scales, *zeros; /* zeros are integers */
} Eight;

/* Values of `count` rows, computed one by one and transposed. */
#define TURNED(TO, AT, VALUE)                                                                                          \
    for (int64_t c = 0; c < COLUMNS; c++) {                                                                            \
        const int64_t AT = scale_index(w, K, least(n + c, last));                                                      \
        for (int64_t g = 0; g < groups; g++) each[c * groups + g] = VALUE;                                             \
    }                                                                                                                  \
    transpose(each, COLUMNS, groups, groups, TO, COLUMNS);

/* `room` has three times the numbers of eight rows' groups. */
static Eight eight_at(const Weight *w, int64_t K, int64_t n, int64_t last, float *room) {
    const int64_t groups = K / w->group, bytes = bytes_of(w->kind, K);
    float *scales = room, *zeros = room + COLUMNS * groups, *each = room + 2 * COLUMNS * groups;
    Eight e = {.scales = scales, .zeros = zeros};
    for (int64_t c = 0; c < COLUMNS; c++) e.rows[c] = (const uint8_t *)w->data + least(n + c, last) * bytes;
    e.next = e.rows[0] + COLUMNS * bytes;
    if (w->kind == MXFP4) { TURNED(scales, at, power_of(((const uint8_t *)w->scales)[at + g]) * 0.5f) }
    else { TURNED(scales, at, ((const float *)w->scales)[at + g]) }
    if (w->zeros) { TURNED(zeros, at, as_float(w->zeros[at + g])) }
    else
        for (int64_t i = 0; i < COLUMNS * groups; i++) zeros[i] = as_float(w->kind == INT8 ? 0 : w->kind == INT4 ? 8 : E2M1_MOST);
    return e;
}
#undef TURNED
#endif
