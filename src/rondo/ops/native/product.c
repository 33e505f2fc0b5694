/* out [M, N] = x [M, K] w^T with threads sharing the columns: see `product.h`. */
#include "product.h"

typedef struct {
    const float *x;
    const void *w;
    float *out, *panels;
    int64_t rows, in, width, type, threads;
} Args;

int64_t product_memory(const Args *a) { return a->threads * panel_size(a->in); }

void product_rows(const Args *a) {
    const int64_t groups = a->width / ACROSS;
#pragma omp parallel for schedule(static) num_threads(a->threads) if (a->threads > 1)
    for (int64_t part = 0; part < a->threads; part++) {
        const int64_t from = groups * part / a->threads * ACROSS, next = groups * (part + 1) / a->threads * ACROSS;
        const int64_t to = part + 1 == a->threads ? a->width : next;
        if (from < to) product(a->type, a->x, a->rows, a->in, a->w, from, to, a->out + from, a->width, a->panels + part * panel_size(a->in));
    }
}
