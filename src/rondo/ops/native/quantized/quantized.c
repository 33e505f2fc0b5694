/* out [M, N] = x [M, K] times the transpose of quantized weights; see `quantized.h`.
 *
 * Rows may belong to several consecutive weights [.., N, K], for example of experts: rows `bounds[g]` to `bounds[g +
 * 1]` are multiplied with weight `owners[g]`. Rows are prepared in blocks; then threads share the columns.
 *
 *   x, out float   bounds [groups + 1]   owners [groups]   memory of `quantized_memory` floats
 */
#include <omp.h>

#include "quantized/phases.h"
#include "quantized/quantized.h"

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

/* Each group starts in its own memory, however few rows it has. */
static inline float *ready_at(const Args *a, int64_t group, int64_t row) {
    return a->memory + (row + group * ROWS) * wide_of(a->K);
}

int64_t quantized_memory(const Args *a) {
    const int64_t rows = a->bounds[a->groups];
    return ready_at(a, a->groups, rows) - a->memory + a->threads * weight_room(BLOCK_ROWS, a->K);
}

#define BLOCKS(G)                                                                                                      \
    for (int64_t row = a->bounds[G], rows; rows = least(BLOCK_ROWS, a->bounds[G + 1] - row), row < a->bounds[G + 1]; row += rows)

enum { READY, MULTIPLY };
enum { EACH = 4 }; /* shares of a thread, if there are as many blocks */

static int64_t count_shares(const void *work, int64_t phase) {
    const Args *a = work;
    int64_t blocks = 0;
    for (int64_t g = 0; g < a->groups; g++) blocks += (a->bounds[g + 1] - a->bounds[g] + BLOCK_ROWS - 1) / BLOCK_ROWS;
    if (phase == READY) return least(blocks, EACH * a->threads);
    return phase == MULTIPLY ? shares_of((a->N + COLUMNS - 1) / COLUMNS, a->groups * a->N * a->K, a->threads) : -1;
}

/* Prepares a part of the blocks. */
static void ready_share(const Args *a, Taken t) {
    int64_t turn = 0;
    for (int64_t g = 0; g < a->groups; g++) {
        const Weight w = weight_of(a, g);
        BLOCKS(g) if (turn++ % t.count == t.share) make_ready(&w, a->x + row * a->K, rows, a->K, ready_at(a, g, row));
    }
}

static void multiply_share(const Args *a, Taken t, float *room) {
    const int64_t from = share(a->N, COLUMNS, t.share, t.count), to = share(a->N, COLUMNS, t.share + 1, t.count);
    for (int64_t g = 0; g < a->groups; g++) {
        const Weight w = weight_of(a, g);
        BLOCKS(g) weight_product(&w, a->x + row * a->K, ready_at(a, g, row), rows, a->K, from, to, a->out + row * a->N + from, a->N, room);
    }
}

void quantized(const Args *a) {
    float *rooms = ready_at(a, a->groups, a->bounds[a->groups]);
    Phases phases = phases_of(count_shares, a);
#pragma omp parallel num_threads(a->threads) if (a->threads > 1)
    {
        float *room = rooms + omp_get_thread_num() * weight_room(BLOCK_ROWS, a->K);
        for (Taken taken = {0}; take_share(&phases, &taken);) {
            if (taken.phase == READY) ready_share(a, taken);
            else multiply_share(a, taken, room);
        }
    }
}
