/* One row's low-rank product, four of its rank at a time: ranks are multiples of 4. */
#ifndef RONDO_LOW_RANK_H
#define RONDO_LOW_RANK_H
#include <stdint.h>

/* out [count] += (x [K] a^T) b, where rows of b are N apart. */
static void add_four(float *restrict out, const float *restrict x, const float *restrict a, const float *restrict b,
                     int64_t K, int64_t N, int64_t count) {
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    for (int64_t k = 0; k < K; k++) {
        d0 += x[k] * a[k];
        d1 += x[k] * a[K + k];
        d2 += x[k] * a[2 * K + k];
        d3 += x[k] * a[3 * K + k];
    }
    for (int64_t n = 0; n < count; n++) out[n] += d0 * b[n] + d1 * b[N + n] + d2 * b[2 * N + n] + d3 * b[3 * N + n];
}
#endif
