/* Products with quantized weights, which stay in place, row after row, in the layout of ops/gemm/quantized.py.
 *
 * Numbers of x are rounded too: in pieces of at most SPAN columns, each within one group, to 16 bits relative to the
 * piece's largest number; or, for int8 activations, a row to 8 bits relative to its largest. A piece's sum of integer
 * products is exact, so it does not depend on the order in which lanes, vectors or another machine add it up: with few
 * rows of x (`integers.h`, `bytes.h`) lanes run along a row, with many (`panels.h`) they are rows. Then follows one
 * multiply-add for each piece, in order. So a result is bitwise equal for any number of rows and threads, and on every
 * CPU.
 *
 * The error of a number of x is at most half a step, and a step is the piece's largest number over LARGEST. So a result
 * differs from the exact product by at most the sum over pieces of largest |x| / (2 LARGEST) * sum |w|, except for
 * fp32's rounding. Rows with non-finite numbers are multiplied number by number without rounding, so that infinities
 * and NaN propagate as usual.
 *
 * fp8 has no integers: its products are added in fp32, in eight parallel chains over a group.
 */
#ifndef RONDO_QUANTIZED_H
#define RONDO_QUANTIZED_H
#include "quantized/fp8.h"
#include "quantized/integers.h"
#include "quantized/panels.h"

/* Floats for prepared rows of x, and for the scratch of a product. */
static inline int64_t ready_size(int64_t M, int64_t K) { return packed_rows(M) * wide_of(K); }
static inline int64_t weight_room(int64_t M, int64_t K) { return most(product_room(M), panel_room(K)); }

/* Prepares rows of x for a weight. */
static void make_ready(const Weight *w, const float *x, int64_t M, int64_t K, float *ready) {
    if (is_integer(w)) round_rows(w, x, M, K, rounded_in(w, M, K, ready));
    else if (is_float(w)) pack(w->kind, x, M, K, ready);
    else if (M > SOME) ready_for_fp8(x, M, K, ready);
}

/* Whether rows prepared for one weight are valid for another. */
static inline int as_ready(const Weight *a, const Weight *b) {
    if (!is_integer(a) || !is_integer(b)) return a->kind == b->kind;
    return step_of(a->kind) == step_of(b->kind) && a->group == b->group && a->whole == b->whole && !a->order && !b->order;
}

/* Columns `from` to `to` of x w^T into out [M, apart] from its first column, for prepared rows of x. */
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
