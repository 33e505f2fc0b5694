/* Attention of one token, or of a few of one request, over its pages; see `attention_kv.h` for the tensors. */
#ifndef RONDO_ATTENTION_H
#define RONDO_ATTENTION_H
#include "attention/tiled_past.h"

/* Prefetches values while scores are computed; while values are summed, prefetches the keys of `next` and `next_head`. */
static void attend_slice(const Attention *a, const Slice *slice, int64_t head, const Slice *next, int64_t next_head, Scratch x,
                         float *partial) {
    const int64_t KV = a->kv, G = a->heads / KV, D = query_size(a), DV = in_waves(a->value_dim), stride = part_size(a);
    const int64_t b = slice->request, from = slice->from, to = slice->to;
    const int64_t end = next && !is_near(a, next->request) ? next->to : 0, value_bytes = is_near(a, b) ? 0 : row_bytes(a, a->value_dim);
    int64_t row, count, apart, ahead = next ? next->from : 0;
    float *scores[BESIDE], *sums[BESIDE];
    if (a->k && to == a->lengths[b]) write_row(a, b, head, x.scores);
    if (meets_tiles(a, b)) {
        Query own[G];
        Ahead coming = {a->keys, row_bytes(a, a->dim), next_head, next ? next->request : b, ahead, end};
        for (int64_t g = 0; g < G; g++) own[g] = (Query){from, to, x.scores + g * SLICE - from, partial + g * stride};
        pack_queries(a, b, 1, head, x);
        attend_by_tiles(a, b, own, G, head, x, &coming);
        return;
    }
    read_queries(a, b, head, x.query);
    for (int64_t t = from; t < to; t += count) {
        count = bite_at(a, b, t, to, &row);
        if (value_bytes) fetch(a, a->values, value_bytes, row, head, count);
        const float *keys = read_keys(a, row, head, count, x.keys, &apart);
        if (a->key_scales) read_scales(a->key_scales + row * KV + head, KV, count, x.scales);
        for (int64_t g = 0, M; g < G; g += M) {
            M = beside(G - g);
            for (int64_t m = 0; m < M; m++) scores[m] = x.scores + (g + m) * SLICE + t - from;
            score(a, x.query + g * D, keys, apart, count, scores, M);
            for (int64_t m = 0; a->key_scales && m < M; m++) multiply(scores[m], x.scales, count);
        }
    }
    for (int64_t g = 0; g < G; g++) weigh(a, x.scores + g * SLICE, to - from, partial + g * stride);
    for (int64_t t = from; t < to; t += count) {
        if (ahead < end) {
            count = bite_at(a, next->request, ahead, end, &row);
            fetch(a, a->keys, row_bytes(a, a->dim), row, next_head, count);
            ahead += count;
        }
        count = bite_at(a, b, t, to, &row);
        const float *values = read_rows(a, a->values, row, head, count, a->value_dim, x.values, &apart);
        if (a->value_scales) read_scales(a->value_scales + row * KV + head, KV, count, x.scales);
        for (int64_t g = 0, M; g < G; g += M) {
            M = beside(G - g);
            for (int64_t m = 0; m < M; m++) {
                scores[m] = x.scores + (g + m) * SLICE + t - from, sums[m] = partial + (g + m) * stride;
                if (a->value_scales) multiply(scores[m], x.scales, count);
            }
            add_rows(scores, values, apart, count, sums, DV, M);
        }
    }
}

/* Merges the slices of one query head, in the place of the first one. */
static void join(const Attention *a, float *first, int64_t slices, int64_t apart, int64_t request, int64_t head) {
    const int64_t DV = in_waves(a->value_dim);
    float top = a->sinks ? a->sinks[head] : first[DV], total = 0;
    for (int64_t s = 0; s < slices; s++) top = first[s * apart + DV] > top ? first[s * apart + DV] : top;
    for (int64_t s = 0; s < slices; s++) {
        const float *own = first + s * apart, share = exp_neg(own[DV] - top);
        total += share * own[DV + 1];
        for (int64_t d = 0; d < DV; d++) first[d] = (s ? first[d] : 0) + share * own[d];
    }
    if (a->sinks) total += exp_neg(a->sinks[head] - top);
    if (a->lse) a->lse[request * a->heads + head] = top + logf(total);
    const float share = 1 / total;
    for (int64_t d = 0; d < DV; d++) first[d] *= share;
    narrow(a->given, first, a->out, (request * a->heads + head) * a->value_dim, a->value_dim);
}

/* The first token inside the window. */
static inline int64_t begin(const Attention *a, int64_t b) {
    return a->window > 0 && a->lengths[b] > a->window ? a->lengths[b] - a->window : 0;
}

/* The slice of a request's past that starts at `from`. */
static inline Slice slice_at(const Attention *a, int64_t b, int64_t from) { return (Slice){b, from, least(from + SLICE, a->lengths[b])}; }

/* One token and key head, slice by slice; `partials` has `partials_size` floats. After the token's last head the next
 * token follows, if it is below `tokens`. */
static inline void attend_token(const Attention *a, int64_t b, int64_t head, int64_t tokens, Scratch x, float *partials) {
    const int64_t G = a->heads / a->kv, stride = part_size(a), length = a->lengths[b];
    const int64_t follows = head + 1 < a->kv ? b : b + 1;
    int64_t slices = 0;
    for (int64_t from = begin(a, b); from < length; from += SLICE) {
        const int within = from + SLICE < length, more = within || follows < tokens;
        const Slice slice = slice_at(a, b, from), next = within ? slice_at(a, b, from + SLICE) : more ? slice_at(a, follows, begin(a, follows)) : slice;
        attend_slice(a, &slice, head, more ? &next : NULL, within ? head : (head + 1) % a->kv, x, partials + slices++ * G * stride);
    }
    for (int64_t g = 0; g < G; g++) join(a, partials + g * stride, slices, G * stride, b, head * G + g);
}

/* Maximum number of neighbouring tokens in one task: their queries and scores stay in the cache, and the partial
 * results of long pasts stay small. */
static inline int64_t neighbours(const Attention *a) {
    const int64_t many = by_tiles(a) && a->pages * a->size <= SHORT_PAST ? 4 * MANY : MANY;
    return most(4, many * a->kv / a->heads);
}

/* Number of the `rows` neighbours in one task with a key head, so that every thread has a task. */
static inline int64_t shared_out(const Attention *a, int64_t rows, int64_t threads) {
    int64_t together = neighbours(a);
    while (together > SIDE && (rows + together - 1) / together * a->kv < 2 * threads) together /= 2;
    return together;
}

/* Number of tokens from `b`, below `tokens`, that share one past and are processed together. */
static inline int64_t run_at(const Attention *a, int64_t b, int64_t tokens) {
    const int64_t end = least(tokens, b + neighbours(a));
    int64_t last = b + 1;
    while (last < end && is_near(a, last) && meets_tiles(a, last) == meets_tiles(a, b)) last++;
    return last - b;
}

/* Rows from token `t` to `end` of one past, at most a tile, as contiguous floats; and their scales, if any. */
static void read_tile(const Attention *a, const void *pages, const float *scales, int64_t b, int64_t t, int64_t end, int64_t head,
                      int64_t dim, float *to, float *scales_to) {
    int64_t row, count, apart;
    for (; t < end; t += count, to += count * in_waves(dim), scales_to += count) {
        count = tile_at(a, b, t, end, &row);
        const float *rows = read_rows(a, pages, row, head, count, dim, to, &apart);
        for (int64_t i = 0; i < count && rows != to; i++) memcpy(to + i * dim, rows + i * apart, dim * sizeof(float));
        if (scales) read_scales(scales + row * a->kv + head, a->kv, count, scales_to);
    }
}

/* The same for keys that are multiplied in place. */
static void read_pairs(const Attention *a, int64_t b, int64_t t, int64_t end, int64_t head, float *to) {
    int64_t row, count, apart;
    const int64_t D = query_size(a);
    for (; t < end; t += count) {
        count = tile_at(a, b, t, end, &row);
        const float *rows = read_keys(a, row, head, count, to, &apart);
        for (int64_t i = 0; i < count; i++, to += D) memcpy(to, rows + i * apart, D * sizeof(float));
    }
}

/* Tokens from `t` to `end` that M queries attend to: of each query, and of all of them. */
typedef struct {
    int64_t from[BESIDE], to[BESIDE], first, last;
} Seen;

ALWAYS_INLINE void see(const Query *queries, int64_t M, int64_t t, int64_t end, Seen *s) {
    s->first = t, s->last = end;
    for (int64_t m = 0; m < M; m++) {
        s->from[m] = most(t, queries[m].from), s->to[m] = most(s->from[m], least(end, queries[m].to));
        s->first = most(s->first, s->from[m]), s->last = least(s->last, s->to[m]);
    }
    if (s->first > s->last) s->first = s->last = end;
}

/* For a tile of rows from token `t` to `end`: the products of all queries with the rows in their windows, or the sums
 * by their weights. A row is read once for all queries that attend to it. */
#define EACH_QUERIES                                                                                                   \
    for (int64_t r = 0, M; r < count; r += M) {                                                                        \
        const Query *own = queries + r;                                                                                \
        float *scores[BESIDE];                                                                                         \
        Seen s;                                                                                                        \
        see(own, M = beside(count - r), t, end, &s);                                                                   \
        ask_for(a, next, share);                                                                                 \
        for (int64_t m = 0; m < M; m++) scores[m] = own[m].scores + s.first;

static void score_tile(const Attention *a, const Query *queries, int64_t count, const float *query, const float *keys, const float *scales,
                       int64_t t, int64_t end, Ahead *next) {
    const int64_t D = query_size(a), share = ((next->to - next->from) * BESIDE + count - 1) / count;
    EACH_QUERIES
        score(a, query + r * D, keys + (s.first - t) * D, D, s.last - s.first, scores, M);
        for (int64_t m = 0; m < M; m++) {
            const int64_t before = least(s.first, s.to[m]), after = most(s.from[m], s.last);
            float *first = own[m].scores + s.from[m], *last = own[m].scores + after;
            if (s.from[m] < before) score(a, query + (r + m) * D, keys + (s.from[m] - t) * D, D, before - s.from[m], &first, 1);
            if (after < s.to[m]) score(a, query + (r + m) * D, keys + (after - t) * D, D, s.to[m] - after, &last, 1);
            if (scales) multiply(first, scales + s.from[m] - t, s.to[m] - s.from[m]);
        }
    }
}

static void add_tile(const Attention *a, const Query *queries, int64_t count, const float *values, const float *scales, int64_t t,
                     int64_t end, Ahead *next) {
    const int64_t DV = in_waves(a->value_dim), share = ((next->to - next->from) * BESIDE + count - 1) / count;
    EACH_QUERIES
        float *sums[BESIDE];
        for (int64_t m = 0; m < M; m++) {
            const int64_t before = least(s.first, s.to[m]);
            float *first = own[m].scores + s.from[m];
            sums[m] = own[m].part;
            if (scales) multiply(first, scales + s.from[m] - t, s.to[m] - s.from[m]);
            if (s.from[m] < before) add_rows(&first, values + (s.from[m] - t) * DV, DV, before - s.from[m], sums + m, DV, 1);
        }
        if (s.first < s.last) add_rows(scores, values + (s.first - t) * DV, DV, s.last - s.first, sums, DV, M);
        for (int64_t m = 0; m < M; m++) {
            const int64_t after = most(s.from[m], s.last);
            float *last = own[m].scores + after;
            if (after < s.to[m]) add_rows(&last, values + (after - t) * DV, DV, s.to[m] - after, sums + m, DV, 1);
        }
    }
}
#undef EACH_QUERIES

/* One slice of the queries of a few tokens of one request, each at its place in the token's own past. A tile of keys is
 * read once for all of them; each token's result is bitwise equal to `attend_slice`. */
static void attend_slices(const Attention *a, int64_t b, const Query *queries, int64_t n, int64_t head, Scratch x) {
    int64_t first = INT64_MAX, last = 0;
    for (int64_t r = 0; r < n; r++)
        if (queries[r].from < queries[r].to) first = least(first, queries[r].from), last = most(last, queries[r].to);
    if (meets_tiles(a, b)) {
        attend_by_tiles(a, b, queries, n, head, x, NULL);
        return;
    }
    Ahead keys = {a->keys, row_bytes(a, a->dim), head, b, first, first}, values = {a->values, row_bytes(a, a->value_dim), head, b, first, first};
    for (int64_t t = first, end; t < last; t = end) {
        end = least(t + TILE, last);
        if (in_pairs(a)) read_pairs(a, b, t, end, head, x.keys);
        else read_tile(a, a->keys, a->key_scales, b, t, end, head, a->dim, x.keys, x.scales);
        Ahead *next = end < last ? &keys : &values;
        next->from = end < last ? end : first, next->to = least(next->from + TILE, last);
        score_tile(a, queries, n, x.query, x.keys, a->key_scales ? x.scales : NULL, t, end, next);
    }
    for (int64_t r = 0; r < n; r++)
        if (queries[r].from < queries[r].to) weigh(a, queries[r].scores + queries[r].from, queries[r].to - queries[r].from, queries[r].part);
    for (int64_t t = first, end; t < last; t = end) {
        end = least(t + TILE, last);
        read_tile(a, a->values, a->value_scales, b, t, end, head, a->value_dim, x.values, x.scales);
        values.from = end, values.to = least(end + TILE, last);
        add_tile(a, queries, n, x.values, a->value_scales ? x.scales : NULL, t, end, &values);
    }
}

/* Like `attend_token`, for `n` tokens of one request at once. */
static void attend_run(const Attention *a, int64_t b, int64_t n, int64_t head, Scratch x, float *partials) {
    const int64_t G = a->heads / a->kv, stride = part_size(a);
    Query queries[n * G];
    int64_t slices = 0;
    for (int64_t j = b; j < b + n; j++) slices = most(slices, (a->lengths[j] - begin(a, j) + SLICE - 1) / SLICE);
    if (meets_tiles(a, b)) pack_queries(a, b, n, head, x);
    else
        for (int64_t j = 0; j < n; j++) read_queries(a, b + j, head, x.query + j * G * query_size(a));
    for (int64_t i = 0; i < slices; i++) {
        for (int64_t r = 0; r < n * G; r++) {
            const Slice own = slice_at(a, b + r / G, begin(a, b + r / G) + i * SLICE);
            queries[r] = (Query){own.from, own.to, x.scores + r * SLICE - own.from, partials + (r * slices + i) * stride};
        }
        attend_slices(a, b, queries, n * G, head, x);
    }
    for (int64_t r = 0; r < n * G; r++) {
        const int64_t j = b + r / G, own = (a->lengths[j] - begin(a, j) + SLICE - 1) / SLICE;
        join(a, partials + r * slices * stride, own, stride, j, head * G + r % G);
    }
}

/* Floats for the partial results of a run and for a thread's scratch with `tokens` processed together, and the layout
 * of `memory`. */
static inline int64_t partials_size(const Attention *a, int64_t longest) {
    return neighbours(a) * ((longest + SLICE - 1) / SLICE) * (a->heads / a->kv) * part_size(a);
}

/* The first address at the start of a cache line. */
static inline float *at_line(float *memory) { return memory + (LINE - ((uintptr_t)memory / sizeof(float)) % LINE) % LINE; }

/* Queries of `tokens` tokens, rounded up to whole tiles. */
static inline int64_t queries_of(const Attention *a, int64_t tokens) { return (tokens * (a->heads / a->kv) + SIDE - 1) / SIDE * SIDE; }

/* Rows of values in memory at once, in pairs or single. */
static inline int64_t values_kept(const Attention *a) { return by_tiles(a) ? SLICE / 2 : TILE; }

static inline int64_t scratch_size(const Attention *a, int64_t tokens) {
    const int64_t D = in_waves(a->dim), DV = in_waves(a->value_dim), queries = queries_of(a, tokens);
    return queries * D + most(queries * SLICE, most(D, DV)) + TILE * (1 + D) + values_kept(a) * DV + LINE;
}

static inline Scratch scratch_in(const Attention *a, int64_t tokens, float *memory) {
    const int64_t D = in_waves(a->dim), DV = in_waves(a->value_dim), queries = queries_of(a, tokens);
    memory = at_line(memory);
    float *scores = memory + queries * D, *tiles = scores + most(queries * SLICE, most(D, DV));
    return (Scratch){memory, scores, tiles, tiles + TILE, tiles + TILE * (1 + D)};
}
#endif
