/* x [M, K] times the transpose of w [N, K], row-major both, in fp32 or with w in bf16.
 *
 * Each number is one sum over K, in LONG lanes that are put together in one order: it is the same for any number of rows
 * and wherever the columns are cut. A few rows of w stay in the nearest cache while all of x passes them. K is a multiple
 * of LONG.
 */
#ifndef RONDO_PRODUCT_H
#define RONDO_PRODUCT_H
#include "vectors.h"

#ifdef __AVX512F__
enum { LONG = 16, TALL = 6 };
#else
enum { LONG = 8, TALL = 3 };
#endif
enum { ACROSS = 4, PANEL = 4096 }; /* floats of w that stay near */

typedef float Long __attribute__((vector_size(4 * LONG), aligned(4), may_alias));

/* Keeps a value in a register: compilers would load it again for each of its products. */
#if defined __AVX512F__
#define HOLD(x) __asm__("" : "+v"(x))
#elif defined __AVX__
#define HOLD(x) __asm__("" : "+x"(x))
#else
#define HOLD(x) ((void)0)
#endif

ALWAYS_INLINE Half narrowed(Long x) {
#ifdef __AVX512F__
    union { Long whole; Half parts[4]; } u = {x};
    return (u.parts[0] + u.parts[1]) + (u.parts[2] + u.parts[3]);
#else
    return halved(x);
#endif
}

/* M rows of x by four of w. M is known to the compiler: the sums are registers. */
ALWAYS_INLINE void product_tile(const float *x, const float *w, int64_t K, float *out, int64_t apart, const int M) {
    Long sum[TALL][ACROSS];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < ACROSS; n++) sum[m][n] = (Long){0};
    for (int64_t k = 0; k < K; k += LONG) {
        Long rows[TALL];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            rows[m] = *(const Long *)(x + m * K + k);
            HOLD(rows[m]);
        }
#pragma GCC unroll 4
        for (int n = 0; n < ACROSS; n++) {
            Long column = *(const Long *)(w + n * K + k);
            HOLD(column);
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) sum[m][n] += rows[m] * column;
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
        *(Half *)(out + m * apart) = sums(narrowed(sum[m][0]), narrowed(sum[m][1]), narrowed(sum[m][2]), narrowed(sum[m][3]));
}

static inline int64_t panel_rows(int64_t K) { return most(PANEL / K / ACROSS * ACROSS, ACROSS); }

/* How many floats `product` may need to widen a panel of weights. */
static inline int64_t panel_size(int64_t K) { return panel_rows(K) * K; }

/* Asks for so many cache lines, and says where to go on. */
ALWAYS_INLINE const char *fetch(const char *from, int64_t lines) {
    for (int64_t i = 0; i < lines; i++) __builtin_prefetch(from + 64 * i);
    return from + 64 * lines;
}

/* With each tile it asks for a share of the `bytes` at `next`, where the weights that come next are. */
static void panel_product(const float *x, int64_t M, int64_t K, const float *w, int64_t N, float *out, int64_t apart,
                          const char *next, int64_t bytes) {
    const int64_t tiles = (M / TALL + M % TALL / 2 + M % TALL % 2) * ((N + ACROSS - 1) / ACROSS), lines = bytes / 64 / tiles + 1;
    int64_t m = 0;
#define ROWS(COUNT)                                                                                                    \
    for (; m + COUNT <= M; m += COUNT)                                                                                 \
        for (int64_t c = 0; c < N; c += ACROSS) {                                                                      \
            const int64_t n = least(c, N - ACROSS);                                                                    \
            next = fetch(next, lines);                                                                                 \
            product_tile(x + m * K, w + n * K, K, out + m * apart + n, apart, COUNT);                                  \
        }
    ROWS(TALL)
    ROWS(2)
    ROWS(1)
#undef ROWS
}

/* Columns `from` to `to`, at least ACROSS, of x w^T into out [M, apart] from its first column on. `wide` takes a panel as
 * floats. Where the last ones are fewer than a tile, the tile before them is made again with them. */
static void product(int64_t type, const float *x, int64_t M, int64_t K, const void *w, int64_t from, int64_t to,
                    float *out, int64_t apart, float *wide) {
    if (M == 0) return;
    const int64_t step = panel_rows(K), size = type == F32 ? 4 : 2;
    for (int64_t n = from, end; n < to; n = end) {
        end = least(n + step, to);
        if (end - n < ACROSS) n = end - ACROSS;
        const int64_t count = end - n;
        const float *panel = (const float *)w + n * K;
        if (type != F32) {
            widen(type, w, n * K, wide, count * K);
            panel = wide;
        }
        panel_product(x, M, K, panel, count, out + n - from, apart, (const char *)w + end * K * size, count * K * size);
    }
}
#endif
