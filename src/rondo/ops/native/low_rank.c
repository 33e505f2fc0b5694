/* out[row] += (x[row] a^T) b for rows in groups, each group with matrices of its own.
 *
 * A row's arithmetic depends on that row and its group's matrices alone, so results do not change with the batch or the
 * number of threads. Ranks are multiples of 4: four dot products are taken and used at once, and x and out stay in the
 * nearest cache while the matrices stream by.
 *
 *   out [T, N]  x [T, K]  rows [R]  bounds [G + 1]  table [G, 3]: address of a [r, K], address of b [r, N], r
 */
#include <stdint.h>

typedef struct {
    float *out;
    const float *x;
    const int64_t *rows, *bounds, *table;
    int64_t groups, in, width, threads;
} Args;

static void add_four(float *restrict out, const float *restrict x, const float *restrict a, const float *restrict b,
                     int64_t K, int64_t N) {
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    for (int64_t k = 0; k < K; k++) {
        d0 += x[k] * a[k];
        d1 += x[k] * a[K + k];
        d2 += x[k] * a[2 * K + k];
        d3 += x[k] * a[3 * K + k];
    }
    for (int64_t n = 0; n < N; n++) out[n] += d0 * b[n] + d1 * b[N + n] + d2 * b[2 * N + n] + d3 * b[3 * N + n];
}

void low_rank_f32(const Args *args) {
    const int64_t K = args->in, N = args->width;
    _Pragma("omp parallel for schedule(dynamic, 4) num_threads(args->threads) if (args->threads > 1)")
    for (int64_t g = 0; g < args->groups; g++) {
        const float *a = (const float *)args->table[3 * g], *b = (const float *)args->table[3 * g + 1];
        for (int64_t r = 0; r < args->table[3 * g + 2]; r += 4)
            for (int64_t i = args->bounds[g]; i < args->bounds[g + 1]; i++) {
                const int64_t row = args->rows[i];
                add_four(args->out + row * N, args->x + row * K, a + r * K, b + r * N, K, N);
            }
    }
}
