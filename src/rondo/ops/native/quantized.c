/* out [M, N] = x [M, K] times the transpose of weights of few bits; see `quantized.h`.
 *
 * Rows may be of several weights [.., N, K] that lie one after another, as those of experts do: rows `bounds[g]` to
 * `bounds[g + 1]` meet weight `owners[g]`. Rows are made ready for it in blocks; then each thread has a share of all columns.
 *
 *   x, out float   bounds [groups + 1]   owners [groups]   memory of `quantized_memory` floats
 */
#include <omp.h>

#include "quantized.h"
#include "shares.h"

typedef struct {
    Weight weight;
    const float *x;
    float *out, *memory;
    const int64_t *bounds, *owners;
    int64_t groups, K, N, threads;
} Args;

enum { BLOCK_ROWS = 64 };

static Weight weight_of(const Args *a, int64_t group) {
    Weight w = a->weight;
    const int64_t owner = a->owners[group], scales = owner * (a->N / w.block) * (a->K / w.group);
    w.data = (const char *)w.data + owner * a->N * bytes_of(w.kind, a->K);
    w.scales = (const char *)w.scales + scales * (w.kind == MXFP4 ? 1 : 4);
    if (w.zeros) w.zeros += scales;
    if (w.order) w.order += owner * a->K;
    return w;
}

/* Those of a group begin where no other's do, however few rows it has. */
static inline float *ready_at(const Args *a, int64_t group, int64_t row) {
    return a->memory + (row + group * ROWS) * wide_of(a->K);
}

int64_t quantized_memory(const Args *a) {
    const int64_t rows = a->bounds[a->groups];
    return ready_at(a, a->groups, rows) - a->memory + a->threads * weight_room(BLOCK_ROWS, a->K);
}

#define BLOCKS(G)                                                                                                      \
    for (int64_t row = a->bounds[G], rows; rows = least(BLOCK_ROWS, a->bounds[G + 1] - row), row < a->bounds[G + 1]; row += rows)

void quantized(const Args *a) {
    float *rooms = ready_at(a, a->groups, a->bounds[a->groups]);
#pragma omp parallel num_threads(a->threads)
    {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        int64_t turn = 0;
        for (int64_t g = 0; g < a->groups; g++) {
            const Weight w = weight_of(a, g);
            BLOCKS(g) if (turn++ % threads == thread) make_ready(&w, a->x + row * a->K, rows, a->K, ready_at(a, g, row));
        }
#pragma omp barrier
        const int64_t from = share(a->N, COLUMNS, thread, threads), to = share(a->N, COLUMNS, thread + 1, threads);
        float *room = rooms + thread * weight_room(BLOCK_ROWS, a->K);
        for (int64_t g = 0; g < a->groups; g++) {
            const Weight w = weight_of(a, g);
            BLOCKS(g) weight_product(&w, a->x + row * a->K, ready_at(a, g, row), rows, a->K, from, to, a->out + row * a->N + from, a->N, room);
        }
    }
}
