/* Products with weights of few bits, which stay as they lie, row after row, in the form that ops/gemm/quantized.py states.
 *
 * Numbers of x are rounded too: in pieces of at most SPAN columns, none of which is in two groups, to 16 bits of the piece's
 * largest number; or, for int8 activations, a row to 8 bits of its largest. A piece's sum of integer products is exact, so
 * that it does not matter in which order lanes, vectors or another machine add it up: with few rows of x (`integers.h`, `bytes.h`)
 * lanes run along a row, with many (`panels.h`) they are rows. What follows is one multiply-add for each piece, in their
 * order. So a result has the same bits for any number of rows and threads, and on every CPU.
 *
 * A number of x is so at most half a step off, and a step is the piece's largest over LARGEST: a result differs from that
 * of the exact product by no more than the sum over pieces of largest |x| / (2 LARGEST) * sum |w|, but for fp32's rounding.
 * Rows in which not all is finite are multiplied as they are, number by number, so that infinities and NaN come out as
 * anywhere else.
 *
 * fp8 has no integers: its products are added in fp32, eight chains over a group side by side.
 */
#ifndef RONDO_QUANTIZED_H
#define RONDO_QUANTIZED_H
#include "quantized/fp8.h"
#include "quantized/integers.h"
#include "quantized/panels.h"

/* How many floats rows of x need to be ready for a product, and what it needs to work with. */
static inline int64_t ready_size(int64_t M, int64_t K) { return packed_rows(M) * wide_of(K); }
static inline int64_t weight_room(int64_t M, int64_t K) { return most(product_room(M), panel_room(K)); }

/* Makes rows of x ready for a weight. */
static void make_ready(const Weight *w, const float *x, int64_t M, int64_t K, float *ready) {
    if (is_integer(w)) round_rows(w, x, M, K, rounded_in(w, M, K, ready));
    else if (is_float(w)) pack(w->kind, x, M, K, ready);
    else if (M > SOME) ready_for_fp8(x, M, K, ready);
}

/* Whether rows that are ready for one weight are so for another. */
static inline int as_ready(const Weight *a, const Weight *b) {
    if (!is_integer(a) || !is_integer(b)) return a->kind == b->kind;
    return step_of(a->kind) == step_of(b->kind) && a->group == b->group && a->whole == b->whole && !a->order && !b->order;
}

/* Columns `from` to `to` of x w^T into out [M, apart] from its first column on, for rows of x that are ready. */
static void weight_product(const Weight *w, const float *x, const float *ready, int64_t M, int64_t K, int64_t from, int64_t to,
                           float *out, int64_t apart, float *room) {
    if (w->kind == FP8 && M > SOME) fp8_panels(w, ready, M, K, from, to, out, apart, room);
    else if (w->kind == FP8) fp8_product(w, x, M, K, from, to, out, apart, room);
    else if (is_float(w)) product(w->kind, ready, M, K, w->data, from, to, out, apart, room);
    else {
        const Rounded rows = rounded_in(w, M, K, (void *)ready);
        if (rows.many) panels_product(w, rows, M, K, from, to, out, apart, room);
        else integer_product(w, rows, M, K, from, to, out, apart, room);
        if (!w->whole) multiply_plain_rows(w, rows, x, M, K, from, to, out, apart);
    }
}
#endif
