/* Attention of one new token over its request's pages, with the writing of its key and value.
 *
 * A token's past is cut into slices of a fixed length; each gives, for a key head and the query heads that share it, a
 * part of the answer, and the parts are put together in their order. So all arithmetic depends on the token and its past
 * alone, however the slices are shared among threads.
 *
 *   keys   [blocks, size, KV, D]     values [blocks, size, KV, DV]   of the type `kept`
 *   key_scales, value_scales [blocks, size, KV] where it has them, else NULL
 *   q      [B, H, D]   k [B, KV, D]  v [B, KV, DV]  out [B, H, DV]   of the type `given`; k and v NULL where they are written already
 *   tables [requests, pages]   owners [B] the request of each token, NULL where each has its own
 *   lengths [B] (the new token counted)  slots [B]  sinks [H] float or NULL
 */
#ifndef RONDO_ATTENTION_H
#define RONDO_ATTENTION_H
#include <stdlib.h>

#include "vectors.h"

typedef struct {
    void *keys, *values;
    float *key_scales, *value_scales;
    const void *q, *k, *v;
    void *out;
    const int64_t *tables, *owners, *lengths, *slots;
    const float *sinks;
    int64_t kept, given, batch, heads, kv, dim, value_dim, size, pages, window, threads;
    float scale, softcap;
} Attention;

enum { SLICE = 256, TILE = 16 };

/* Part of a request's past: tokens `from` to `to`, and what each query head makes of them (see `Partial`). */
typedef struct {
    int64_t request, from, to;
} Slice;

/* What one thread needs: the scaled query, a slice's scores, and of a tile the scales and the rows as floats. Padding in them is 0. */
typedef struct {
    float *query, *scores, *scales, *keys, *values;
} Scratch;

/* Products of a query with rows that are `apart` floats from one to the next, four at a time so that sums of lanes are
 * shared; the last row stands in for missing ones, so that a row's product does not depend on the others. */
ALWAYS_INLINE void dot(const float *query, const float *rows, int64_t apart, int64_t count, float *out, const int64_t D) {
    for (int64_t t = 0; t < count; t += 4) {
        const int64_t last = count - 1 - t;
        const float *a = rows + t * apart, *b = a + least(1, last) * apart, *c = a + least(2, last) * apart,
                    *d = a + least(3, last) * apart;
        Vec sa = {0}, sb = {0}, sc = {0}, sd = {0};
        for (int64_t i = 0; i < D; i += LANES) {
            const Vec q = *(const Vec *)(query + i);
            sa += q * *(const Vec *)(a + i);
            sb += q * *(const Vec *)(b + i);
            sc += q * *(const Vec *)(c + i);
            sd += q * *(const Vec *)(d + i);
        }
        const Half all = sums(halved(sa), halved(sb), halved(sc), halved(sd));
        if (last >= 3) memcpy(out + t, &all, sizeof all);
        else memcpy(out + t, &all, (last + 1) * sizeof(float));
    }
}

/* sum [D] += weights [count] @ rows [count, D]. */
ALWAYS_INLINE void add(const float *weights, const float *rows, int64_t apart, int64_t count, float *sum, const int64_t D) {
    int64_t i = 0;
    for (; i + 4 * LANES <= D; i += 4 * LANES) {
        Vec *s = (Vec *)(sum + i);
        Vec a = s[0], b = s[1], c = s[2], d = s[3];
        for (int64_t t = 0; t < count; t++) {
            const Vec *row = (const Vec *)(rows + t * apart + i);
            a += weights[t] * row[0];
            b += weights[t] * row[1];
            c += weights[t] * row[2];
            d += weights[t] * row[3];
        }
        s[0] = a, s[1] = b, s[2] = c, s[3] = d;
    }
    for (; i < D; i += LANES) {
        Vec a = *(Vec *)(sum + i);
        for (int64_t t = 0; t < count; t++) a += weights[t] * *(const Vec *)(rows + t * apart + i);
        *(Vec *)(sum + i) = a;
    }
}

/* Loops over a size that the compiler knows become a few vector instructions. */
#define FOR_SIZE(NAME)                                                                                                 \
    static void NAME##_rows(const float *x, const float *rows, int64_t apart, int64_t count, float *out, int64_t D) {  \
        if (D == 32) NAME(x, rows, apart, count, out, 32);                                                             \
        else if (D == 64) NAME(x, rows, apart, count, out, 64);                                                        \
        else if (D == 128) NAME(x, rows, apart, count, out, 128);                                                      \
        else NAME(x, rows, apart, count, out, D);                                                                      \
    }
FOR_SIZE(dot)
FOR_SIZE(add)

/* The tokens from `t` on, at most to `to`, that lie in one page and fill one tile; `row` is where they begin. */
static inline int64_t tile_at(const Attention *a, int64_t request, int64_t t, int64_t to, int64_t *row) {
    const int64_t page = t / a->size;
    const int64_t owner = a->owners ? a->owners[request] : request;
    *row = a->tables[owner * a->pages + page] * a->size + t % a->size;
    return least(least(to, (page + 1) * a->size) - t, TILE);
}

static inline void read_scales(const float *from, int64_t step, int64_t count, float *restrict to) {
    for (int64_t i = 0; i < count; i++) to[i] = from[i * step];
}

static inline void multiply(float *restrict row, const float *restrict by, int64_t count) {
    for (int64_t i = 0; i < count; i++) row[i] *= by[i];
}

static void write_row(const Attention *a, int64_t request, int64_t head, float *row) {
    const int64_t from = request * a->kv + head, to = a->slots[request] * a->kv + head;
    widen(a->given, a->k, from * a->dim, row, a->dim);
    keep(a->kept, row, a->keys, a->key_scales, to, a->dim);
    widen(a->given, a->v, from * a->value_dim, row, a->value_dim);
    keep(a->kept, row, a->values, a->value_scales, to, a->value_dim);
}

/* Scores to weights relative to the largest, in place. */
static void weigh(const Attention *a, float *restrict row, int64_t count, float *top, float *total) {
    const float cap = a->softcap;
    if (cap > 0)
        for (int64_t t = 0; t < count; t++) row[t] = cap * tanhf(row[t] / cap);
    const float highest = largest(row, count);
    for (int64_t t = 0; t < count; t++) row[t] = exp_neg(row[t] - highest);
    *top = highest, *total = sum_of(row, count);
}

/* What one row of a head takes in the cache. */
static inline int64_t row_bytes(const Attention *a, int64_t dim) {
    return dim * (a->kept == F32 ? 4 : a->kept == BF16 || a->kept == F16 ? 2 : 1);
}

/* Asks for the rows of a head that lie in one tile. They are short and far apart: no CPU sees them coming. */
static inline void fetch(const Attention *a, const void *pages, int64_t bytes, int64_t row, int64_t head, int64_t count) {
    const char *at = (const char *)pages + (row * a->kv + head) * bytes;
    for (int64_t i = 0; i < count; i++, at += a->kv * bytes)
        for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(at + byte, 0, 2);
}

/* Whether the token before had the same past. */
static inline int is_near(const Attention *a, int64_t b) { return a->owners && b > 0 && a->owners[b] == a->owners[b - 1]; }

/* While scores are made, values are asked for; while those are added up, the keys of `next`, whose head is `beside`. */
static void attend_slice(const Attention *a, const Slice *slice, int64_t head, const Slice *next, int64_t beside, Scratch x,
                         float *partial, int64_t stride) {
    const int64_t KV = a->kv, G = a->heads / KV, D = padded(a->dim), DV = padded(a->value_dim);
    const int64_t b = slice->request, from = slice->from, to = slice->to;
    const int64_t end = next && !is_near(a, next->request) ? next->to : 0, value_bytes = is_near(a, b) ? 0 : row_bytes(a, a->value_dim);
    int64_t row, count, apart, ahead = next ? next->from : 0;
    if (a->k && to == a->lengths[b]) write_row(a, b, head, x.scores);
    for (int64_t g = 0; g < G; g++) {
        widen(a->given, a->q, (b * a->heads + head * G + g) * a->dim, x.query + g * D, a->dim);
        for (int64_t d = 0; d < D; d++) x.query[g * D + d] *= a->scale;
    }
    for (int64_t t = from; t < to; t += count) {
        count = tile_at(a, b, t, to, &row);
        if (value_bytes) fetch(a, a->values, value_bytes, row, head, count);
        const float *keys = rows_of(a->kept, a->keys, row * KV + head, KV, count, a->dim, D, x.keys, &apart);
        if (a->key_scales) read_scales(a->key_scales + row * KV + head, KV, count, x.scales);
        for (int64_t g = 0; g < G; g++) {
            float *scores = x.scores + g * SLICE + t - from;
            dot_rows(x.query + g * D, keys, apart, count, scores, D);
            if (a->key_scales) multiply(scores, x.scales, count);
        }
    }
    for (int64_t g = 0; g < G; g++) {
        float *own = partial + g * stride;
        weigh(a, x.scores + g * SLICE, to - from, own, own + 1);
        memset(own + 2, 0, DV * sizeof(float));
    }
    for (int64_t t = from; t < to; t += count) {
        if (ahead < end) {
            count = tile_at(a, next->request, ahead, end, &row);
            fetch(a, a->keys, row_bytes(a, a->dim), row, beside, count);
            ahead += count;
        }
        count = tile_at(a, b, t, to, &row);
        const float *values = rows_of(a->kept, a->values, row * KV + head, KV, count, a->value_dim, DV, x.values, &apart);
        if (a->value_scales) read_scales(a->value_scales + row * KV + head, KV, count, x.scales);
        for (int64_t g = 0; g < G; g++) {
            float *weights = x.scores + g * SLICE + t - from;
            if (a->value_scales) multiply(weights, x.scales, count);
            add_rows(weights, values, apart, count, partial + g * stride + 2, DV);
        }
    }
}

/* Puts the slices of one query head together, in the first one's place. */
static void join(const Attention *a, float *first, int64_t slices, int64_t apart, int64_t request, int64_t head) {
    float top = a->sinks ? a->sinks[head] : first[0], total = 0;
    for (int64_t s = 0; s < slices; s++) top = first[s * apart] > top ? first[s * apart] : top;
    for (int64_t s = 0; s < slices; s++) {
        const float *own = first + s * apart, share = exp_neg(own[0] - top);
        total += share * own[1];
        for (int64_t d = 0; d < a->value_dim; d++) first[2 + d] = (s ? first[2 + d] : 0) + share * own[2 + d];
    }
    if (a->sinks) total += exp_neg(a->sinks[head] - top);
    const float share = 1 / total;
    for (int64_t d = 0; d < a->value_dim; d++) first[2 + d] *= share;
    narrow(a->given, first + 2, a->out, (request * a->heads + head) * a->value_dim, a->value_dim);
}

/* The first token that is seen. */
static inline int64_t begin(const Attention *a, int64_t b) {
    return a->window > 0 && a->lengths[b] > a->window ? a->lengths[b] - a->window : 0;
}

/* The slice of a request's past that begins at `from`. */
static inline Slice slice_at(const Attention *a, int64_t b, int64_t from) { return (Slice){b, from, least(from + SLICE, a->lengths[b])}; }

/* One token and key head, slice by slice; `partials` is of `partials_size`. After the last of the token's heads comes the
 * token after it, if that is below `tokens`. */
static inline void attend_token(const Attention *a, int64_t b, int64_t head, int64_t tokens, Scratch x, float *partials) {
    const int64_t G = a->heads / a->kv, stride = padded(a->value_dim) + 2, length = a->lengths[b];
    const int64_t follows = head + 1 < a->kv ? b : b + 1;
    int64_t slices = 0;
    for (int64_t from = begin(a, b); from < length; from += SLICE) {
        const int within = from + SLICE < length, more = within || follows < tokens;
        const Slice slice = slice_at(a, b, from), next = within ? slice_at(a, b, from + SLICE) : more ? slice_at(a, follows, begin(a, follows)) : slice;
        attend_slice(a, &slice, head, more ? &next : NULL, within ? head : (head + 1) % a->kv, x, partials + slices++ * G * stride, stride);
    }
    for (int64_t g = 0; g < G; g++) join(a, partials + g * stride, slices, G * stride, b, head * G + g);
}

static inline int64_t partials_size(const Attention *a, int64_t longest) {
    return (longest + SLICE - 1) / SLICE * (a->heads / a->kv) * (padded(a->value_dim) + 2);
}

/* How many floats a thread's scratch has, and where they are in `memory`, which is 0. */
static inline int64_t scratch_size(const Attention *a) {
    const int64_t G = a->heads / a->kv, D = padded(a->dim), DV = padded(a->value_dim);
    return G * D + most(G * SLICE, most(D, DV)) + TILE * (1 + D + DV);
}

static inline Scratch scratch_in(const Attention *a, float *memory) {
    const int64_t G = a->heads / a->kv, D = padded(a->dim), DV = padded(a->value_dim);
    float *tiles = memory + G * D + most(G * SLICE, most(D, DV));
    return (Scratch){memory, memory + G * D, tiles, tiles + TILE, tiles + TILE * (1 + D)};
}
#endif
