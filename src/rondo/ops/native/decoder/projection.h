/* A projection of a layer, whose columns threads share, with the additions of adapters. */
#ifndef RONDO_PROJECTION_H
#define RONDO_PROJECTION_H
#include "gemm/low_rank.h"
#include "decoder/row.h"

/* A projection of a layer: its number, its weight [.., in] and its bias. */
typedef struct {
    const Weight *weight;
    const void *bias;
    int64_t site, in, width;
} Projection;

/* The pair of the token's adapter at a projection; its rank is 0 if there is none. */
static inline Pair pair_of(const Step *s, int64_t token, int64_t site) {
    const int64_t *adapter = s->args->adapters[s->owners[token]];
    return adapter ? pair_at(adapter + 3 * site) : (Pair){NULL, NULL, 0};
}

/* Adds the adapters' outputs to columns `from` to `to`. */
static void adapt(const Step *s, Projection p, const float *x, int64_t first, int64_t rows, int64_t from, int64_t to,
                  float *out, int64_t apart) {
    for (int64_t r = 0; r < rows; r++) {
        const Pair own = pair_of(s, first + r, p.site), next = pair_of(s, first + least(r + 1, rows - 1), p.site);
        if (!own.r) continue;
        add_low_rank(out + r * apart, x + r * p.in, own, p.in, p.width, from, to, next.a);
        settle(s->args->given, out + r * apart, to - from);
    }
}

/* Columns `from` to `to` for tokens from `first`, whose x are ready; out is the place of column `from`. */
static void project_ready(const Step *s, Own *own, Projection p, const float *x, const float *ready, int64_t first, int64_t rows,
                          int64_t from, int64_t to, float *out, int64_t apart) {
    const int64_t type = s->args->given;
    weight_product(p.weight, x, ready, rows, p.in, from, to, out, apart, own->room);
    for (int64_t r = 0; r < rows; r++) {
        float *restrict row = out + r * apart;
        if (p.bias)
            for (int64_t i = from; i < to; i++) row[i - from] += at(type, p.bias, i);
        settle(type, row, to - from);
    }
    if (s->args->adapters) adapt(s, p, x, first, rows, from, to, out, apart);
}

/* The same, after making x ready if necessary. */
static void project(const Step *s, Own *own, Projection p, const float *x, int64_t first, int64_t rows, int64_t from,
                    int64_t to, float *out, int64_t apart) {
    if (!own->ready || !as_ready(own->ready, p.weight)) make_ready(p.weight, x, rows, p.in, own->packed);
    own->ready = p.weight;
    project_ready(s, own, p, x, own->packed, first, rows, from, to, out, apart);
}
#endif
