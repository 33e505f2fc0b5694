/* The product by a CPU's bf16 dot products (AVX-512 BF16). A result is one chain of them over K, a pair each, in pieces
 * of KC: for few rows lanes are columns (as in `gemv.h`), for many they are rows, and the chain is the same. */
#ifndef RONDO_DOTS_H
#define RONDO_DOTS_H
#include "gemm/pairs.h"
#include "gemm/gemv.h"

#ifdef HAS_DOTS
/* Columns of a tile; maximum rows of x with sums in registers; pairs of them that stay in the cache. */
enum { DOT_COLUMNS = 12, DOT_FEW = 24, NEAR_PAIRS = 12 << 10 };
/* Maximum rows that leave registers for sixteen lines of weights; numbers of K in a line. */
enum { DOT_LINES = 8, LINE_DEEP = 32 };

/* Whether these rows, as lanes, would leave too many lanes empty. */
static inline int are_few_dots(int64_t M) { return M <= DOT_LINES || (M > SIDE && M <= DOT_FEW); }

static inline uint32_t two_at(const void *x, int64_t pair) {
    uint32_t both;
    memcpy(&both, (const char *)x + 4 * pair, 4);
    return both;
}

/* Packing of few rows: [pairs of K, M]. */
static void pack_dots(const float *x, int64_t M, int64_t K, float *packed) {
    if (!are_few_dots(M)) {
        pack_pairs(x, M, K, packed);
        return;
    }
    uint16_t *to = (uint16_t *)packed;
    for (int64_t m = 0; m < M; m++)
        for (int64_t k = 0; k < K; k += 2)
            to[k * M + 2 * m] = to_bf16(x[m * K + k]), to[k * M + 2 * m + 1] = to_bf16(x[m * K + k + 1]);
}

/* Adds products of the pairs of K from `k` with sixteen columns to sums [M]. Each prefetches a line at the same offset
 * from `next`, in runs of KC that are `step` apart. */
ALWAYS_INLINE void meet_pairs(const uint16_t *x, int64_t k, const Turned *turned, const uint16_t *next, int64_t step, Wide *sum,
                              const int pairs, const int M) {
#pragma GCC unroll 16
    for (int j = 0; j < pairs; j++) {
        const uint64_t at = (uint64_t)k * SIDE + 32 * j;
        __builtin_prefetch(next + at / KC * step + at % KC, 0, 2);
#pragma GCC unroll 32
        for (int m = 0; m < M; m++) sum[m] = DOT_PAIRS(sum[m], (Pairs)turned[j], two_at(x, (k / 2 + j) * M + m) - (Pairs){0});
    }
}

/* Adds the products of KC of K to 16 columns of M rows, or initializes them: x, w and K start there. Prefetches the
 * same amount of the following memory. The number of rows of w read at once must not be much larger: they often are a
 * power of two apart, and then map to few sets of a cache. */
ALWAYS_INLINE void few_dots(const uint16_t *x, int64_t K, int64_t depth, const uint16_t *w, const uint16_t *next, int64_t step,
                            float *out, int64_t apart, int begins, const int M) {
    Wide sum[DOT_FEW];
#pragma GCC unroll 32
    for (int m = 0; m < M; m++) sum[m] = (Wide){0};
    int64_t k = 0;
    for (; M <= DOT_LINES && k + LINE_DEEP <= depth; k += LINE_DEEP) {
        Turned turned[SIDE];
        turn_lines((const float *)(w + k), K / 2, turned);
        meet_pairs(x, k, turned, next, step, sum, SIDE, M);
    }
    for (; k < depth; k += 8) {
        Turned turned[4];
        turn_sixteen((const float *)(w + k), K / 2, turned);
        meet_pairs(x, k, turned, next, step, sum, 4, M);
    }
#pragma GCC unroll 32
    for (int m = 0; m < M; m++) {
        Wide *to = (Wide *)(out + m * apart);
        *to = (begins ? (Wide){0} : *to) + sum[m];
    }
}

/* One number, by the same instructions as sixteen, so that it is bitwise equal. */
static float one_dot(const uint16_t *x, int64_t M, const uint16_t *w, int64_t K) {
    Wide sums = {0};
    for (int64_t begin = 0; begin < K; begin += KC) {
        Wide sum = {0};
        for (int64_t k = begin; k < least(K, begin + KC); k += 2)
            sum = DOT_PAIRS(sum, two_at(x, k / 2 * M) - (Pairs){0}, two_at(w + k, 0) - (Pairs){0});
        sums += sum;
    }
    return sums[0];
}

/* Groups of 16 columns. If rows of x are too large for the cache, a piece of them is multiplied with many groups before
 * the next one. */
ALWAYS_INLINE void few_dot_groups(const uint16_t *x, int64_t K, const uint16_t *w, int64_t groups, float *out, int64_t apart,
                                  const int M) {
    const int64_t group = SIDE * K, together = M * K <= NEAR_PAIRS ? 1 : 8;
    for (int64_t count; (count = least(together, groups)) > 0; groups -= count, w += count * group, out += count * SIDE) {
        for (int64_t k = 0; k < K; k += KC)
            for (int64_t i = 0; i < count; i++) {
                const uint16_t *own = w + i * group + k, *next = own + group;
                if (together == 1) next = w + group + SIDE * k;
                else if (i + 1 == count) next = k + KC < K ? w + k + KC : w + count * group;
                few_dots(x + k * M, K, least(KC, K - k), own, next, together == 1 ? KC : K, out + i * SIDE, apart, k == 0, M);
            }
    }
}

static void few_dot_rows(const uint16_t *x, int64_t M, int64_t K, const uint16_t *w, int64_t from, int64_t to, float *out,
                         int64_t apart) {
    const int64_t groups = (to - from) / SIDE;
#define DOTS_OF(M)                                                                                                     \
    case M: few_dot_groups(x, K, w + from * K, groups, out, apart, M); break;
    switch (M) {
        DOTS_OF(1) DOTS_OF(2) DOTS_OF(3) DOTS_OF(4) DOTS_OF(5) DOTS_OF(6) DOTS_OF(7) DOTS_OF(8)
        DOTS_OF(17) DOTS_OF(18) DOTS_OF(19) DOTS_OF(20) DOTS_OF(21) DOTS_OF(22) DOTS_OF(23) DOTS_OF(24)
    }
#undef DOTS_OF
    for (int64_t n = from + groups * SIDE; n < to; n++)
        for (int64_t m = 0; m < M; m++) out[m * apart + n - from] = one_dot(x + 2 * m, M, w + n * K, K);
}

/* Adds to sums [C, V vectors of rows] over pairs of K, or initializes them. Each pair prefetches one line of `next`:
 * all prefetches at once would stall. */
ALWAYS_INLINE void dots_tile(const float *x, int64_t tile, const uint16_t *w, int64_t K, int64_t depth, const char *next,
                             float *sums, int begins, const int V, const int C) {
    Wide sum[DOT_COLUMNS][2];
#pragma GCC unroll 16
    for (int c = 0; c < C; c++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) sum[c][v] = (Wide){0};
    for (int64_t k = 0; k < depth; k += 2) {
        Pairs rows[2];
        __builtin_prefetch(next + 32 * k, 0, 3);
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) memcpy(rows + v, x + v * tile + k / 2 * SIDE, sizeof *rows);
#pragma GCC unroll 16
        for (int c = 0; c < C; c++) {
            const Pairs all = two_at(w + c * K + k, 0) - (Pairs){0};
#pragma GCC unroll 2
            for (int v = 0; v < V; v++) sum[c][v] = DOT_PAIRS(sum[c][v], rows[v], all);
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < C; c++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) {
            Wide *to = (Wide *)(sums + (c * V + v) * SIDE);
            *to = (begins ? (Wide){0} : *to) + sum[c][v];
        }
}

/* Like `product`; `sums` has room for 12 columns of 32 rows. */
static void dots_product(const float *packed, int64_t M, int64_t K, const uint16_t *w, int64_t from, int64_t to, float *out,
                         int64_t apart, float *sums) {
    if (are_few_dots(M)) {
        few_dot_rows((const uint16_t *)packed, M, K, w, from, to, out, apart);
        return;
    }
    const int64_t tile = strips(K) * STRIP / 2 * SIDE;
    for (int64_t n = from, count; n < to; n += count) {
        count = least(DOT_COLUMNS, to - n);
        for (int64_t m = 0; m < M; m += 2 * SIDE) {
            const int V = M - m > SIDE ? 2 : 1;
            for (int64_t k = 0; k < K; k += KC) {
                const float *x = packed + m / SIDE * tile + k / 2 * SIDE;
                const int64_t depth = least(KC, K - k);
                const char *next = (const char *)(w + (n + count) * K + 16 * k);
                int64_t c = 0;
#define COLUMNS(V, C)                                                                                                  \
    for (; c + C <= count; c += C) dots_tile(x, tile, w + (n + c) * K + k, K, depth, next, sums + c * V * SIDE, k == 0, V, C);
                if (V == 2) { COLUMNS(2, 12) COLUMNS(2, 4) COLUMNS(2, 1) }
                else { COLUMNS(1, 12) COLUMNS(1, 4) COLUMNS(1, 1) }
#undef COLUMNS
            }
            transpose(sums, count, least(2 * SIDE, M - m), V * SIDE, out + m * apart + n - from, apart);
        }
    }
}
#else
static void pack_dots(const float *x, int64_t M, int64_t K, float *packed) { (void)x, (void)M, (void)K, (void)packed; }

static void dots_product(const float *packed, int64_t M, int64_t K, const uint16_t *w, int64_t from, int64_t to, float *out,
                         int64_t apart, float *sums) {
    (void)packed, (void)M, (void)K, (void)w, (void)from, (void)to, (void)out, (void)apart, (void)sums;
}
#endif
#endif
