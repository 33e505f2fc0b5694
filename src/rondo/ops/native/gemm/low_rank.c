/* out[row] += (x[row] a^T) b for rows in groups, each group with its own matrices.
 *
 * A row's arithmetic depends only on that row and its group's matrices, so results do not change with the batch or the
 * number of threads.
 *
 *   out [T, N]  x [T, K]  rows [R]  bounds [G + 1]  table [G, 3]: address of a [r, K], address of b [r, N], r
 */
#include "gemm/low_rank.h"

typedef struct {
    float *out;
    const float *x;
    const int64_t *rows, *bounds, *table;
    int64_t groups, in, width, threads;
} Args;

void low_rank_f32(const Args *args) {
    const int64_t K = args->in, N = args->width;
    _Pragma("omp parallel for schedule(dynamic, 4) num_threads(args->threads) if (args->threads > 1)")
    for (int64_t g = 0; g < args->groups; g++) {
        const Pair pair = pair_at(args->table + 3 * g);
        for (int64_t i = args->bounds[g]; i < args->bounds[g + 1]; i++) {
            const int64_t row = args->rows[i];
            add_low_rank(args->out + row * N, args->x + row * K, pair, K, N, 0, N, pair.a);
        }
    }
}
