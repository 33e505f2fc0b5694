/* One row's low-rank product, four of its rank at a time: ranks are multiples of 4.
 *
 * In a step of mixed requests the matrices of many adapters are each read once, so the following memory is prefetched
 * while one part is used.
 */
#ifndef RONDO_LOW_RANK_H
#define RONDO_LOW_RANK_H
#include "build/vectors.h"

enum { RANKS = 64 }; /* products held at once */

/* The pair of a row: a [r, K], b [r, N]. */
typedef struct {
    const float *a, *b;
    int64_t r;
} Pair;

static inline Pair pair_at(const int64_t *entry) {
    return (Pair){(const float *)entry[0], (const float *)entry[1], entry[2]};
}

/* Products of x with four rows; prefetches as much memory at `next`. */
static void four_products(const float *restrict x, const float *restrict a, int64_t K, float *restrict d, const float *next) {
    Vec s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t k = 0;
    for (; k + LANES <= K; k += LANES) {
        const Vec by = *(const Vec *)(x + k);
        __builtin_prefetch(next + 4 * k), __builtin_prefetch(next + 4 * k + 16);
        s0 += by * *(const Vec *)(a + k);
        s1 += by * *(const Vec *)(a + K + k);
        s2 += by * *(const Vec *)(a + 2 * K + k);
        s3 += by * *(const Vec *)(a + 3 * K + k);
    }
    const Half all = sums(halved(s0), halved(s1), halved(s2), halved(s3));
    for (int64_t j = 0; j < 4; j++) d[j] = all[j];
    for (; k < K; k++)
        for (int64_t j = 0; j < 4; j++) d[j] += x[k] * a[j * K + k];
}

/* out [count] += d [4] b, where rows of b are N apart; prefetches as much memory at `next`. */
static void add_four(float *restrict out, const float *restrict d, const float *restrict b, int64_t N, int64_t count,
                     const float *next) {
    const float d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
    int64_t n = 0;
    for (; n + LANES <= count; n += LANES) {
        __builtin_prefetch(next + 4 * n), __builtin_prefetch(next + 4 * n + 16);
        *(Vec *)(out + n) += d0 * *(const Vec *)(b + n) + d1 * *(const Vec *)(b + N + n) + d2 * *(const Vec *)(b + 2 * N + n) +
                             d3 * *(const Vec *)(b + 3 * N + n);
    }
    for (; n < count; n++) out[n] += d0 * b[n] + d1 * b[N + n] + d2 * b[2 * N + n] + d3 * b[3 * N + n];
}

/* out [to - from] += columns `from` to `to` of (x [K] a^T) b [N]; prefetches `after`. */
static void add_low_rank(float *restrict out, const float *restrict x, Pair p, int64_t K, int64_t N, int64_t from, int64_t to,
                         const float *after) {
    float d[RANKS];
    for (int64_t first = 0; first < p.r; first += RANKS) {
        const int64_t end = least(first + RANKS, p.r);
        for (int64_t r = first; r < end; r += 4)
            four_products(x, p.a + r * K, K, d + r - first, r + 4 < end ? p.a + (r + 4) * K : p.b + first * N + from);
        for (int64_t r = first; r < end; r += 4)
            add_four(out, d + r - first, p.b + r * N + from, N, to - from, r + 4 < end ? p.b + (r + 4) * N + from : after);
    }
}
#endif
