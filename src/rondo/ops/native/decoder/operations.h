/* The operations of a layer on a block of tokens; each computes a thread's part of the heads or columns. */
#ifndef RONDO_OPERATIONS_H
#define RONDO_OPERATIONS_H
#include "decoder/projection.h"

static void add_rows_to(const Args *a, float *restrict x, const float *restrict more, int64_t rows, int64_t from, int64_t to,
                        int64_t apart) {
    for (int64_t r = 0; r < rows; r++) {
        float *restrict row = x + r * a->hidden + from;
        for (int64_t i = 0; i < to - from; i++) row[i] += more[r * apart + i];
        settle(a->given, row, to - from);
    }
}

/* Start and end of the thread's part of `count` things. */
static inline int64_t part_from(const Own *own, int64_t count, int64_t unit) { return share(count, unit, own->part, own->parts); }
static inline int64_t part_to(const Own *own, int64_t count, int64_t unit) { return share(count, unit, own->part + 1, own->parts); }

static void norms(const Step *s, const Own *own, const void *weight, int64_t first, int64_t rows) {
    const int64_t hidden = s->args->hidden, last = part_to(own, rows, 1);
    for (int64_t r = part_from(own, rows, 1); r < last; r++)
        norm(s->args, s->x + (first + r) * hidden, weight, own->normed + r * hidden, hidden);
}

/* Heads `from` to `to` of a projection, with their norm and rotation, if any. */
static void project_heads(const Step *s, const Layer *l, Own *own, Projection p, int64_t first, int64_t rows,
                          const void *weight, int turns, int64_t from, int64_t to, float *out) {
    if (from >= to) return;
    project(s, own, p, own->normed, first, rows, from * l->dim, to * l->dim, out, p.width);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < to - from; h++) {
            float *head = out + r * p.width + h * l->dim;
            if (weight) norm(s->args, head, weight, head, l->dim);
            if (turns) rotate(s->args, l, first + r, head);
        }
}

/* Writes heads `from` to `to` of keys or values to the pages. */
static void keep_heads(const Step *s, const Layer *l, int64_t first, int64_t rows, float *heads, int64_t from, int64_t to,
                       void *pages, float *scales) {
    const Args *a = s->args;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = from; h < to; h++)
            keep(a->kept, heads + (r * l->kv + h) * l->dim, pages, scales,
                 a->slots[l->group * a->tokens + first + r] * l->kv + h, l->dim);
}

/* Computes queries of tokens from `first`; writes their keys and values to the pages. The heads of all three,
 * concatenated, are split into parts. */
static void ask(const Step *s, const Layer *l, Own *own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t D = l->dim, width = l->heads * D, narrow = l->kv * D, all = l->heads + 2 * l->kv;
    const Projection q = {&l->q, l->q_bias, l->sites[Q], a->hidden, width}, k = {&l->k, l->k_bias, l->sites[K], a->hidden, narrow},
                     v = {&l->v, l->v_bias, l->sites[V], a->hidden, narrow};
    const int64_t begin = part_from(own, all, 1), end = part_to(own, all, 1), to = least(end, l->heads);
    project_heads(s, l, own, q, first, rows, l->q_norm, 1, begin, to, s->q + first * width + begin * D);
    float *keys = own->kv, *values = own->kv + rows * narrow;
    const int64_t key = most(begin - l->heads, 0), keys_end = least(end - l->heads, l->kv);
    project_heads(s, l, own, k, first, rows, l->k_norm, 1, key, keys_end, keys + key * D);
    keep_heads(s, l, first, rows, keys, key, keys_end, l->keys, l->key_scales);
    const int64_t value = most(begin - l->heads - l->kv, 0), values_end = end - l->heads - l->kv;
    project_heads(s, l, own, v, first, rows, NULL, 0, value, values_end, values + value * D);
    keep_heads(s, l, first, rows, values, value, values_end, l->values, l->value_scales);
}

/* Number of neighbouring tokens in one task with a key head: tokens of one request share their past. */
static inline int64_t tokens_of_task(const Args *a, const Attention *attention, int64_t rows) {
    return a->related ? shared_out(attention, rows, has_one_block(a) ? a->threads : 1) : 1;
}

static inline int64_t attention_tasks(const Args *a, const Layer *l, int64_t rows) {
    const Attention attention = attention_of(a, l);
    const int64_t together = tokens_of_task(a, &attention, rows);
    return (rows + together - 1) / together * l->kv;
}

static void attend(const Step *s, const Layer *l, const Own *own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t width = l->heads * l->dim, group = l->heads / l->kv * l->dim, tasks = attention_tasks(a, l, rows);
    Attention attention = attention_of(a, l);
    attention.q = s->q + first * width, attention.out = own->mixed;
    attention.owners = s->owners + first, attention.lengths = s->lengths + first;
    const Scratch scratch = scratch_in(&attention, neighbours(&attention), own->attention);
    const int64_t together = tokens_of_task(a, &attention, rows), last = part_to(own, tasks, 1);
    for (int64_t task = part_from(own, tasks, 1); task < last; task++) {
        const int64_t head = task % l->kv, end = least(rows, (task / l->kv + 1) * together);
        for (int64_t r = task / l->kv * together, n; r < end; r += n) {
            n = run_at(&attention, r, end);
            if (n > 1) attend_run(&attention, r, n, head, scratch, own->partials);
            else attend_token(&attention, r, head, rows, scratch, own->partials);
            for (int64_t i = r; i < r + n; i++) settle(a->given, own->mixed + i * width + head * group, group);
        }
    }
}

static void output(const Step *s, const Layer *l, Own *own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t from = part_from(own, a->hidden, UNIT), to = part_to(own, a->hidden, UNIT);
    const Projection o = {&l->o, l->o_bias, l->sites[O], l->heads * l->dim, a->hidden};
    project(s, own, o, own->mixed, first, rows, from, to, own->normed + from, a->hidden);
    add_rows_to(a, s->x + first * a->hidden, own->normed + from, rows, from, to, a->hidden);
}

/* Whether the feed-forward's hidden rows are stored in the layout of the next product: pairs for tiles. */
static inline int feeds_pairs(const Args *a, const Layer *l) {
    return a->given == BF16 && l->down.kind == BF16 && !a->adapters && as_ready(&l->gate, &l->up) && way_of(BF16) == BY_TILES;
}

static void feed(const Step *s, const Layer *l, Own *own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t from = part_from(own, l->inner, UNIT), to = part_to(own, l->inner, UNIT);
    const Projection gate = {&l->gate, NULL, l->sites[GATE], a->hidden, l->inner}, up = {&l->up, NULL, l->sites[UP], a->hidden, l->inner};
    const int pairs = feeds_pairs(a, l);
    const int64_t step = as_ready(&l->gate, &l->up) && !a->adapters ? GATED : most(1, to - from); /* x is converted once */
    const int64_t apart = pairs ? GATED : l->inner, deep = strips(l->inner) * STRIP / 2;
    for (int64_t begin = from, last; begin < to; begin = last) {
        float *gated = pairs ? own->gated : own->act + begin;
        last = least(begin + step, to);
        project(s, own, gate, own->normed, first, rows, begin, last, gated, apart);
        for (int64_t n = begin, end; n < last; n = end) {
            end = least(n + GATED, last);
            project(s, own, up, own->normed, first, rows, n, end, own->up, GATED);
            for (int64_t r = 0; r < rows; r++) {
                float *restrict row = gated + r * apart + n - begin;
                const float *restrict by = own->up + r * GATED;
                for (int64_t i = 0; i < end - n; i++) row[i] = row[i] * sigmoid(row[i]) * by[i];
                settle(a->given, row, end - n);
            }
        }
        if (pairs) pack_piece(gated, GATED, rows, last - begin, own->act + begin / 2 * SIDE, deep);
    }
    if (pairs && to == l->inner) end_strip(rows, l->inner, own->act);
}

static void bring(const Step *s, const Layer *l, Own *own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t from = part_from(own, a->hidden, UNIT), to = part_to(own, a->hidden, UNIT);
    const Projection down = {&l->down, NULL, l->sites[DOWN], l->inner, a->hidden};
    if (feeds_pairs(a, l)) project_ready(s, own, down, NULL, own->act, first, rows, from, to, own->normed + from, a->hidden);
    else project(s, own, down, own->act, first, rows, from, to, own->normed + from, a->hidden);
    add_rows_to(a, s->x + first * a->hidden, own->normed + from, rows, from, to, a->hidden);
}

/* Moves the rows to read to the front. */
static void gather(const Step *s, const Layer *l) {
    const Args *a = s->args;
    const int64_t hidden = a->hidden, width = l->heads * l->dim;
    for (int64_t to = 0; to < a->reads; to++) {
        const int64_t from = a->read[to];
        if (from == to) continue;
        memcpy(s->x + to * hidden, s->x + from * hidden, hidden * sizeof(float));
        memcpy(s->q + to * width, s->q + from * width, width * sizeof(float));
        s->owners[to] = s->owners[from], s->lengths[to] = s->lengths[from];
    }
}
#endif
