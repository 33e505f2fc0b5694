/* x [M, K] times the transpose of w [N, K]; w is fp32 or bf16 and stays in place, row after row.
 *
 * Rows of x are packed so that a vector has one number of each row. A number of w is then multiplied with all of them
 * at once, without sums over lanes. So each result is one chain over K in pieces of KC, whose sums are added in order.
 * It is the same for any number of rows, any split of the columns and any vector length. K is a multiple of STEP.
 */
#ifndef RONDO_PRODUCT_H
#define RONDO_PRODUCT_H
#include "gemm/gemm_bf16.h"
#include "gemm/gemm_amx.h"

/* Long is the longest vector, and NR the number of them that fit the registers. */
#if defined __AVX512F__
enum { REGISTER_FLOATS = 16, NR = 12 };
#elif defined __AVX__
enum { REGISTER_FLOATS = 8, NR = 6 };
#elif defined __ARM_NEON
#include <arm_neon.h>
enum { REGISTER_FLOATS = 4, NR = 12 };
#else
enum { REGISTER_FLOATS = 4, NR = 6 };
#endif
#if defined HAS_TILES || defined HAS_DOTS
enum { ROWS = SIDE };
#else
enum { ROWS = REGISTER_FLOATS };
#endif
/* A tile is two vectors of rows and NR columns, or one and PANEL. A panel of columns is used while it is in the cache:
 * one piece of it at a time is in rows of PIECE. */
enum { PANEL = 12, STEP = 16, PIECE = KC + STEP };

typedef float Long __attribute__((vector_size(4 * REGISTER_FLOATS), aligned(4), may_alias));

/* HOLD keeps a value in a register: compilers would load it again for each of its products. If a chain is one column
 * wide, compilers may separate the multiplication from the addition, which rounds differently; MULTIPLY_ADD prevents
 * that. */
#if defined __AVX512F__
#define HOLD(x) __asm__("" : "+v"(x))
#define MULTIPLY_ADD(a, b, c) ((Long)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#elif defined __AVX__ && defined __FMA__
#define HOLD(x) __asm__("" : "+x"(x))
#define MULTIPLY_ADD(a, b, c) ((Long)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#elif defined __ARM_NEON && defined __aarch64__
#define HOLD(x) __asm__("" : "+w"(x))
#define MULTIPLY_ADD(a, b, c) ((Long)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#elif defined __SSE2__ /* without fused multiply-add, all results are rounded twice */
#define HOLD(x) __asm__("" : "+x"(x))
#define MULTIPLY_ADD(a, b, c) ((c) + (a) * (b))
#else
#define HOLD(x) ((void)0)
#define MULTIPLY_ADD(a, b, c) ((c) + (a) * (b))
#endif

/* Vectors of rows in the tile that starts at row m. */
static inline int vectors_at(int64_t m, int64_t M) { return M - m > REGISTER_FLOATS ? 2 : 1; }

/* Number of rows in `packed`. */
static inline int64_t packed_rows(int64_t M) { return (M + ROWS - 1) / ROWS * ROWS; }

/* Packs rows tile by tile, with zeros for missing rows in a vector. */
static void pack_floats(const float *x, int64_t M, int64_t K, float *packed) {
    if (is_slim(M)) {
        pack_slim(x, M, K, packed);
        return;
    }
    for (int64_t m = 0, wide; m < M; m += wide, packed += wide * K) {
        wide = vectors_at(m, M) * REGISTER_FLOATS;
        if (M - m < wide) memset(packed, 0, wide * K * sizeof(float));
        transpose(x + m * K, least(wide, M - m), K, K, packed, wide);
    }
}

/* Rows for a product with weights of a type. */
static void pack(int64_t type, const float *x, int64_t M, int64_t K, float *packed) {
    const Way way = way_of(type);
    if (way == BY_TILES) pack_pairs(x, M, K, packed);
    else if (way == BY_DOTS) pack_dots(x, M, K, packed);
    else pack_floats(x, M, K, packed);
}

/* Adds to sums [C, V vectors], or initializes them. V and C are compile-time constants, so that sums are registers. */
ALWAYS_INLINE void product_tile(const float *x, const float *w, int64_t depth, float *sums, Next *next, const int V,
                                const int C) {
    Long sum[PANEL][2];
    const char *at = next->at;
#pragma GCC unroll 16
    for (int c = 0; c < C; c++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) sum[c][v] = (Long){0};
    for (int64_t begin = 0; begin < depth; begin += STEP) {
        for (int64_t i = 0; i < next->lines; i++, at += 64) __builtin_prefetch(at, 0, 2);
#pragma GCC unroll 4
        for (int64_t k = begin; k < begin + STEP; k++) {
            Long rows[2];
#pragma GCC unroll 2
            for (int v = 0; v < V; v++) {
                rows[v] = *(const Long *)(x + (k * V + v) * REGISTER_FLOATS);
                __builtin_prefetch(x + (k * V + v + 16) * REGISTER_FLOATS, 0, 3);
                HOLD(rows[v]);
            }
#pragma GCC unroll 16
            for (int c = 0; c < C; c++) {
                Long all = w[c * PIECE + k] - (Long){0};
                HOLD(all);
#pragma GCC unroll 2
                for (int v = 0; v < V; v++) sum[c][v] = MULTIPLY_ADD(rows[v], all, sum[c][v]);
            }
        }
    }
    next->at = at;
#pragma GCC unroll 16
    for (int c = 0; c < C; c++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) *(Long *)(sums + (c * V + v) * REGISTER_FLOATS) += sum[c][v];
}

/* One tile of rows by `count` columns. */
static void tile_product(const float *x, const float *w, int64_t depth, int64_t count, int V, float *sums, Next *next) {
    int64_t c = 0;
#define COLUMNS(V, C)                                                                                                  \
    for (; c + C <= count; c += C) product_tile(x, w + c * PIECE, depth, sums + c * V * REGISTER_FLOATS, next, V, C);
    if (V == 2) {
        COLUMNS(2, NR)
        COLUMNS(2, 4)
        COLUMNS(2, 1)
    } else {
        COLUMNS(1, PANEL)
        COLUMNS(1, 4)
        COLUMNS(1, 1)
    }
#undef COLUMNS
}

/* Floats of scratch for `product`: sums, and a piece of a panel of weights; or four tiles. */
static inline int64_t product_room(int64_t M) { return most(PANEL * (packed_rows(M) + PIECE), 4 * SIDE * SIDE); }

static void floats_product(int64_t type, const float *packed, int64_t M, int64_t K, const void *w, int64_t from, int64_t to,
                    float *out, int64_t apart, float *room) {
    if (is_slim(M)) {
        slim_product(type, packed, M, K, w, from, to, out, apart);
        return;
    }
    const int64_t size = type == F32 ? 4 : 2, tiles = (M + 2 * REGISTER_FLOATS - 1) / (2 * REGISTER_FLOATS);
    float *sums = room, *wide = room + PANEL * packed_rows(M);
    for (int64_t n = from, count; n < to && M > 0; n += count) {
        count = least(PANEL, to - n);
        const int64_t bytes = least(PANEL, to - n - count) * K * size, across = M > REGISTER_FLOATS ? NR : PANEL;
        const int64_t steps = tiles * ((count + across - 1) / across) * (K / STEP);
        Next next = {(const char *)w + (n + count) * K * size, (bytes / 64 + steps - 1) / steps};
        memset(sums, 0, count * packed_rows(M) * sizeof(float));
        for (int64_t k = 0; k < K; k += KC) {
            const int64_t depth = least(KC, K - k);
            for (int64_t c = 0; c < count; c++) widen(type, w, (n + c) * K + k, wide + c * PIECE, depth);
            for (int64_t m = 0; m < M; m += 2 * REGISTER_FLOATS) {
                const int V = vectors_at(m, M);
                tile_product(packed + m * K + k * V * REGISTER_FLOATS, wide, depth, count, V, sums + m * count, &next);
            }
        }
        for (int64_t m = 0; m < M; m += 2 * REGISTER_FLOATS)
            transpose(sums + m * count, count, least(2 * REGISTER_FLOATS, M - m), vectors_at(m, M) * REGISTER_FLOATS, out + m * apart + n - from, apart);
    }
}

/* Columns `from` to `to` of x w^T into out [M, apart] from its first column, with packed x. */
static void product(int64_t type, const float *packed, int64_t M, int64_t K, const void *w, int64_t from, int64_t to,
                    float *out, int64_t apart, float *room) {
    const Way way = way_of(type);
    if (way == BY_TILES) tiles_product(packed, M, K, w, from, to, out, apart, room);
    else if (way == BY_DOTS) dots_product(packed, M, K, w, from, to, out, apart, room);
    else floats_product(type, packed, M, K, w, from, to, out, apart, room);
}
#endif
