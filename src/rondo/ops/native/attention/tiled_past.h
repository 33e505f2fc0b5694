/* One slice of a past for a few queries by a CPU's matrix tiles (AMX): keys and values are in bf16, and so are the
 * weights multiplied with values. Scores are chains over strips of a head's numbers, and results are chains over strips
 * of the slice's tokens, with zeros outside a query's window. So a query's result does not depend on the queries beside
 * it. */
#ifndef RONDO_TILED_PAST_H
#define RONDO_TILED_PAST_H
#include "attention/attention_kv.h"
#include "gemm/gemm_amx.h"

/* One slice of a query's past; `scores[t]` is its score of token t, and later its weight. */
typedef struct {
    int64_t from, to;
    float *scores, *part;
} Query;

/* The next tile, prefetched in pieces while the current one is used. */
typedef struct {
    const void *pages;
    int64_t bytes, head, b, from, to;
} Ahead;

static inline void ask_for(const Attention *a, Ahead *next, int64_t share) {
    if (next->from >= next->to) return;
    int64_t row, count = tile_at(a, next->b, next->from, least(next->to, next->from + share), &row);
    fetch(a, next->pages, next->bytes, row, next->head, count);
    next->from += count;
}

/* Prefetches `count` rows, across pages. */
static inline void ask_for_rows(const Attention *a, Ahead *next, int64_t count) {
    const int64_t end = least(next->to, next->from + count);
    while (next->from < end) ask_for(a, next, end - next->from);
}

/* Whether a window limits the token's past, or may: a cache that stores only the window counts tokens from the first
 * stored one, so that slices of a longer past do not start at fixed tokens. */
static inline int has_window(const Attention *a, int64_t b) { return a->window > 0 && a->lengths[b] >= a->window; }

#ifdef HAS_TILES
static inline int by_tiles(const Attention *a) {
    return a->asked == BF16 && a->kept == BF16 && a->dim % STRIP == 0 && a->value_dim % SIDE == 0 && way_of(BF16) == BY_TILES;
}

/* The queries of `n` tokens and a key head, in pairs as the second operand: [groups of 16, D / 2, 16]. */
static void pack_queries(const Attention *a, int64_t b, int64_t n, int64_t head, Scratch x) {
    const int64_t G = a->heads / a->kv, D = a->dim / 2;
    for (int64_t r = 0; r < n * G; r += SIDE) {
        const int64_t count = least(SIDE, n * G - r);
        for (int64_t i = 0; i < count; i++) {
            const int64_t from = ((b + (r + i) / G) * a->heads + head * G + (r + i) % G) * a->dim;
            if (a->given == BF16) memcpy(x.keys + i * D, (const uint16_t *)a->q + from, a->dim * sizeof(uint16_t));
            else narrow(BF16, (const float *)a->q + from, x.keys + i * D, 0, a->dim);
        }
        transpose(x.keys, count, D, D, x.query + r * D, SIDE);
    }
}

/* Keys from token t to `end`, contiguous. */
static void gather_keys(const Attention *a, int64_t b, int64_t t, int64_t end, int64_t head, uint16_t *to) {
    for (int64_t row, count; t < end; t += count) {
        count = tile_at(a, b, t, end, &row);
        const uint16_t *from = (const uint16_t *)a->keys + (row * a->kv + head) * a->dim;
        for (int64_t i = 0; i < count; i++, to += a->dim, from += a->kv * a->dim)
            for (int64_t d = 0; d < a->dim; d += STRIP) memcpy(to + d, from + d, STRIP * sizeof(uint16_t));
    }
}

/* Interleaves the numbers of two rows into words. */
ALWAYS_INLINE void zip(const uint16_t *restrict first, const uint16_t *restrict second, uint32_t *restrict to) {
    for (int i = 0; i < SIDE; i++) to[i] = (uint32_t)second[i] << 16 | first[i];
}

static int all_finite(const uint16_t *row, int64_t count) {
    int odd = 0;
    for (int64_t i = 0; i < count; i++) odd |= (row[i] & 0x7f80) == 0x7f80;
    return !odd;
}

/* A strip of values from token t, below `end`, in pairs as the second operand: [DV / 16, 16 pairs, 16]. Returns whether
 * the values from token `unseen` are finite. */
static int pair_values(const Attention *a, int64_t b, int64_t t, int64_t end, int64_t unseen, int64_t head, uint32_t *to) {
    const uint16_t *rows[STRIP];
    static const uint16_t nothing[SIDE];
    int finite = 1;
    end = least(end, t + STRIP);
    for (int64_t i = 0; i < STRIP; i++) rows[i] = NULL;
    for (int64_t at = t, row, count; at < end; at += count) {
        count = tile_at(a, b, at, end, &row);
        for (int64_t i = 0; i < count; i++) rows[at + i - t] = (const uint16_t *)a->values + ((row + i) * a->kv + head) * a->value_dim;
    }
    for (int64_t at = most(t, unseen); at < end; at++) finite &= all_finite(rows[at - t], a->value_dim);
    for (int64_t pair = 0; pair < SIDE; pair++)
        for (int64_t d = 0; d < a->value_dim; d += SIDE)
            zip(rows[2 * pair] ? rows[2 * pair] + d : nothing, rows[2 * pair + 1] ? rows[2 * pair + 1] + d : nothing, to + (d + pair) * SIDE);
    return finite;
}

/* sums [Q, V, 16, 16]: Q groups of 16 rows of weights, by V groups of 16 of the values' numbers, over `strips` of tokens. */
ALWAYS_INLINE void answer_tiles(const float *weights, const uint32_t *values, int64_t strips, int64_t DV, float *sums, const int Q,
                                const int V) {
    const int64_t line = SLICE * sizeof(float);
    _tile_zero(0);
    if (V == 2) _tile_zero(1);
    if (Q == 2) _tile_zero(2);
    if (Q == 2 && V == 2) _tile_zero(3);
    for (int64_t s = 0; s < strips; s++, weights += STRIP / 2, values += DV * SIDE) {
        _tile_loadd(4, weights, line);
        _tile_loadd(6, values, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (V == 2) {
            _tile_loadd(7, values + SIDE * SIDE, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (Q == 2) {
            _tile_loadd(5, weights + SIDE * SLICE, line);
            _tile_dpbf16ps(2, 5, 6);
            if (V == 2) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, 64);
    if (V == 2) _tile_stored(1, sums + SIDE * SIDE, 64);
    if (Q == 2) _tile_stored(2, sums + V * SIDE * SIDE, 64);
    if (Q == 2 && V == 2) _tile_stored(3, sums + 3 * SIDE * SIDE, 64);
    SETTLE_MEMORY();
}

/* Converts scores of a query to weights in bf16, in place, with zeros up to the end of `strips`. */
static void weigh_row(const Attention *a, Query q, int64_t strips, float *row) {
    const int64_t count = q.to - q.from;
    float own[SLICE];
    uint16_t *weights = (uint16_t *)row;
    if (count <= 0) return;
    for (int64_t i = 0; i < count; i++) own[i] = row[i] * a->scale;
    weigh(a, own, count, q.part);
    narrow(BF16, own, weights, 0, count);
    memset(weights + count, 0, (strips * STRIP - count) * sizeof(uint16_t));
}

/* The results of `n` queries from number r, over `strips` of values. */
static void answer_queries(const Attention *a, const Query *queries, int64_t r, int64_t n, int64_t strips, Scratch x) {
    const int64_t DV = a->value_dim;
    __attribute__((aligned(64))) float sums[4 * SIDE * SIDE];
    for (int64_t d = 0; d < DV; d += 2 * SIDE) {
        const int Q = n > SIDE ? 2 : 1, V = DV - d > SIDE ? 2 : 1;
        const float *weights = x.scores + r * SLICE;
        const uint32_t *values = (const uint32_t *)x.values + d * SIDE;
        if (Q == 2 && V == 2) answer_tiles(weights, values, strips, DV, sums, 2, 2);
        else if (Q == 2) answer_tiles(weights, values, strips, DV, sums, 2, 1);
        else if (V == 2) answer_tiles(weights, values, strips, DV, sums, 1, 2);
        else answer_tiles(weights, values, strips, DV, sums, 1, 1);
        for (int64_t q = 0; q < n; q++)
            for (int v = 0; v < V && queries[r + q].from < queries[r + q].to; v++)
                memcpy(queries[r + q].part + d + v * SIDE, sums + ((q / SIDE * V + v) * SIDE + q % SIDE) * SIDE, SIDE * sizeof(float));
    }
}

/* One slice for `n` queries packed by `pack_queries`. Values are prefetched while scores are computed, and then
 * `coming`. Values outside a query's window have weight 0 and must be finite for that; otherwise each query is
 * processed separately. */
static void attend_by_tiles(const Attention *a, int64_t b, const Query *queries, int64_t n, int64_t head, Scratch x, Ahead *coming) {
    const int64_t D = a->dim, DV = a->value_dim, tile = SIDE * SIDE, group = SIDE * D / 2, from = queries->from;
    int64_t to = from, unseen = INT64_MAX;
    for (int64_t r = 0; r < n; r++)
        if (from < queries[r].to) to = most(to, queries[r].to), unseen = least(unseen, queries[r].to);
    const int64_t strips = (to - from + STRIP - 1) / STRIP;
    const uint16_t *keys = (const uint16_t *)x.keys;
    const Rows rows[2] = {{keys, D, SIDE}, {keys + SIDE * D, D, SIDE}};
    Next nothing = {NULL, 0};
    __attribute__((aligned(64))) float sums[4 * SIDE * SIDE];
    uint32_t *values = (uint32_t *)x.values;
    Ahead own = {a->values, row_bytes(a, DV), head, b, from, to};
    int finite = 1;
    configure_tiles();
    for (int64_t s = 0; s < strips; s++) {
        const int64_t t = from + s * STRIP;
        ask_for_rows(a, &own, STRIP);
        gather_keys(a, b, t, least(t + STRIP, to), head, (uint16_t *)x.keys);
        SETTLE_MEMORY();
        for (int64_t r = 0; r < n; r += 2 * SIDE) {
            const int Q = n - r > SIDE ? 2 : 1;
            if (Q == 2) tiles_of(rows, x.query + r / SIDE * group, group, sums, &nothing, 2, 2);
            else tiles_of(rows, x.query + r / SIDE * group, group, sums, &nothing, 2, 1);
            for (int k = 0; k < 2; k++)
                for (int q = 0; q < Q; q++)
                    transpose(sums + (k * Q + q) * tile, SIDE, least(SIDE, n - r - q * SIDE), SIDE,
                              x.scores + (r + q * SIDE) * SLICE + s * STRIP + k * SIDE, SLICE);
        }
    }
    for (int64_t r = 0; r < n; r++) weigh_row(a, queries[r], strips, x.scores + r * SLICE);
    for (int64_t s = 0; s < strips; s++) {
        if (coming) ask_for_rows(a, coming, STRIP);
        finite &= pair_values(a, b, from + s * STRIP, to, unseen, head, values + s * DV * SIDE);
    }
    SETTLE_MEMORY();
    for (int64_t r = 0; finite && r < n; r += 2 * SIDE) answer_queries(a, queries, r, least(n - r, 2 * SIDE), strips, x);
    for (int64_t r = 0; !finite && r < n; r++) {
        for (int64_t s = 0; s < strips; s++) pair_values(a, b, from + s * STRIP, most(from, queries[r].to), INT64_MAX, head, values + s * DV * SIDE);
        SETTLE_MEMORY();
        answer_queries(a, queries, r, 1, strips, x);
    }
    _tile_release();
}
#else
static inline int by_tiles(const Attention *a) { return 0 * (a->asked == BF16); }

static inline void pack_queries(const Attention *a, int64_t b, int64_t n, int64_t head, Scratch x) {
    (void)a, (void)b, (void)n, (void)head, (void)x;
}

static inline void attend_by_tiles(const Attention *a, int64_t b, const Query *queries, int64_t n, int64_t head, Scratch x, Ahead *coming) {
    (void)a, (void)b, (void)queries, (void)n, (void)head, (void)x, (void)coming;
}
#endif

static inline int meets_tiles(const Attention *a, int64_t b) { return by_tiles(a) && !has_window(a, b); }
#endif
