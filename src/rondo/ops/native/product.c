/* out [M, N] = x [M, K] w^T with threads sharing the columns: see `product.h`. */
#include <omp.h>

#include "product.h"

typedef struct {
    const float *x;
    const void *w;
    float *out, *memory;
    int64_t rows, in, width, type, threads;
} Args;

static inline int64_t packed_size(const Args *a) { return packed_rows(a->rows) * a->in; }

int64_t product_memory(const Args *a) { return packed_size(a) + a->threads * product_room(a->rows, a->in); }

void product_rows(const Args *a) {
    pack(a->x, a->rows, a->in, a->memory);
    const int64_t panels = (a->width + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(static) num_threads(a->threads) if (a->threads > 1)
    for (int64_t part = 0; part < a->threads; part++) {
        const int64_t from = panels * part / a->threads * PANEL, to = least(panels * (part + 1) / a->threads * PANEL, a->width);
        float *room = a->memory + packed_size(a) + part * product_room(a->rows, a->in);
        product(a->type, a->memory, a->rows, a->in, a->w, from, to, a->out + from, a->width, room);
    }
}
