/* A decoder of dense layers over the tokens of one step, whole: embedding, norms, projections, rotation, attention over
 * pages, feed-forward, head. Between the products of a small model it is waking threads that costs, and whatever else is
 * called: by then weights have streamed through the caches, and its memory is far. Here threads start once a step.
 *
 * With many tokens each thread takes its share of them through all layers, and waits for the others only where tokens of
 * one request see each other. With few, each takes a share of every product's columns. The arithmetic of a token is the
 * same in both: it depends on the token and its past alone.
 *
 * Numbers between operations are fp32, rounded where the model's type would round them.
 *
 *   ids [T], rows of embedding [.., hidden]   read [reads], each above the one before, unless they are all
 *   logits [reads, width] in fp32 by the head [width, hidden], or out [reads, hidden], what the head would be given; without
 *   layers that is what the embedding gives
 *   tables [groups, requests, pages]   owners, lengths (the token counted) [T]   slots [groups, T]
 *   for each kind of rotation: cosines, sines [.., half] floats, turns [T] which row is a token's
 *   adapters [requests], each NULL or [sites, 3]: address of a [r, K], address of b [r, N], r; see `low_rank.c`
 */
#include <omp.h>

#include "layers.h"
#include "low_rank.h"

static inline float at(int64_t type, const void *from, int64_t i) {
    return type == F32 ? ((const float *)from)[i] : from_bf16(((const uint16_t *)from)[i]);
}

/* As the model's type would hold them. */
static inline void settle(int64_t type, float *restrict x, int64_t count) {
    if (type == BF16)
        for (int64_t i = 0; i < count; i++) x[i] = from_bf16(to_bf16(x[i]));
}

/* Eight weights of a norm. */
ALWAYS_INLINE Vec eight_of(int64_t type, const void *weights, int64_t i) {
    union { float each[LANES]; Vec all; } u;
    if (type == F32) return *(const Vec *)((const float *)weights + i);
    eight_bf16((const uint16_t *)weights + i, u.each);
    return u.all;
}

/* n is a multiple of LANES. */
static void norm(const Args *a, const float *x, const void *weight, float *out, int64_t n) {
    const float scale = 1.0f / sqrtf(squares(x, n) / n + (float)a->eps), offset = (float)a->offset;
    for (int64_t i = 0; i < n; i += LANES) *(Vec *)(out + i) = *(const Vec *)(x + i) * scale * (eight_of(a->given, weight, i) + offset);
    settle(a->given, out, n);
}

/* Half of a head is a multiple of HALF. */
static void rotate(const Args *a, const Layer *l, int64_t token, float *x) {
    if (l->rope < 0) return;
    const int64_t row = a->turns[l->rope][token] * l->half;
    const float *cosine = a->cosines[l->rope] + row, *sine = a->sines[l->rope] + row;
    for (int64_t i = 0; i < l->half; i += HALF) {
        const Half first = *(const Half *)(x + i), second = *(const Half *)(x + l->half + i);
        const Half c = *(const Half *)(cosine + i), s = *(const Half *)(sine + i);
        *(Half *)(x + i) = first * c - second * s;
        *(Half *)(x + l->half + i) = second * c + first * s;
    }
    settle(a->given, x, 2 * l->half);
}

/* A projection of a layer: which it is, its weight [.., in] and its bias. */
typedef struct {
    const Weight *weight;
    const void *bias;
    int64_t site, in, width;
} Projection;

/* The pair of the token's adapter at a projection; its rank is 0 where there is none. */
static inline Pair pair_of(const Step *s, int64_t token, int64_t site) {
    const int64_t *adapter = s->args->adapters[s->owners[token]];
    return adapter ? pair_at(adapter + 3 * site) : (Pair){NULL, NULL, 0};
}

/* What adapters add to columns `from` to `to`. */
static void adapt(const Step *s, Projection p, const float *x, int64_t first, int64_t rows, int64_t from, int64_t to,
                  float *out, int64_t apart) {
    for (int64_t r = 0; r < rows; r++) {
        const Pair own = pair_of(s, first + r, p.site), next = pair_of(s, first + least(r + 1, rows - 1), p.site);
        if (!own.r) continue;
        add_low_rank(out + r * apart, x + r * p.in, own, p.in, p.width, from, to, next.a);
        settle(s->args->given, out + r * apart, to - from);
    }
}

/* Makes x ready for a projection, unless it is so from the one before. */
static void ready(Own own, Projection p, const float *x, int64_t rows, const Projection *before) {
    if (!before || !as_ready(before->weight, p.weight)) make_ready(p.weight, x, rows, p.in, own.packed);
}

/* Columns `from` to `to` for tokens `first` on, whose x are ready too; out is where column `from` goes. */
static void project(const Step *s, Own own, Projection p, const float *x, int64_t first, int64_t rows, int64_t from,
                    int64_t to, float *out, int64_t apart) {
    const int64_t type = s->args->given;
    weight_product(p.weight, x, own.packed, rows, p.in, from, to, out, apart, own.room);
    for (int64_t r = 0; r < rows; r++) {
        float *restrict row = out + r * apart;
        if (p.bias)
            for (int64_t i = from; i < to; i++) row[i - from] += at(type, p.bias, i);
        settle(type, row, to - from);
    }
    if (s->args->adapters) adapt(s, p, x, first, rows, from, to, out, apart);
}

static void add_rows_to(const Args *a, float *restrict x, const float *restrict more, int64_t rows, int64_t from, int64_t to,
                        int64_t apart) {
    for (int64_t r = 0; r < rows; r++) {
        float *restrict row = x + r * a->hidden + from;
        for (int64_t i = 0; i < to - from; i++) row[i] += more[r * apart + i];
        settle(a->given, row, to - from);
    }
}

static void norms(const Step *s, Own own, const void *weight, int64_t first, int64_t rows) {
    const int64_t hidden = s->args->hidden, last = share(rows, 1, own.part + 1, s->parts);
    for (int64_t r = share(rows, 1, own.part, s->parts); r < last; r++)
        norm(s->args, s->x + (first + r) * hidden, weight, own.normed + r * hidden, hidden);
}

/* Heads `from` to `to` of a projection, with their norm and rotation where they have one. */
static void project_heads(const Step *s, const Layer *l, Own own, Projection p, int64_t first, int64_t rows,
                          const void *weight, int turns, int64_t from, int64_t to, float *out) {
    project(s, own, p, own.normed, first, rows, from * l->dim, to * l->dim, out, p.width);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < to - from; h++) {
            float *head = out + r * p.width + h * l->dim;
            if (weight) norm(s->args, head, weight, head, l->dim);
            if (turns) rotate(s->args, l, first + r, head);
        }
}

/* Queries of tokens `first` on; their keys and values go to the pages. */
static void ask(const Step *s, const Layer *l, Own own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t D = l->dim, width = l->heads * D, narrow = l->kv * D;
    int64_t from = share(l->heads, 1, own.part, s->parts), to = share(l->heads, 1, own.part + 1, s->parts);
    const Projection q = {&l->q, l->q_bias, l->sites[Q], a->hidden, width}, k = {&l->k, l->k_bias, l->sites[K], a->hidden, narrow},
                     v = {&l->v, l->v_bias, l->sites[V], a->hidden, narrow};
    ready(own, q, own.normed, rows, NULL);
    project_heads(s, l, own, q, first, rows, l->q_norm, 1, from, to, s->q + first * width + from * D);
    from = share(l->kv, 1, own.part, s->parts), to = share(l->kv, 1, own.part + 1, s->parts);
    float *keys = own.kv, *values = own.kv + rows * narrow;
    ready(own, k, own.normed, rows, &q);
    project_heads(s, l, own, k, first, rows, l->k_norm, 1, from, to, keys + from * D);
    ready(own, v, own.normed, rows, &k);
    project_heads(s, l, own, v, first, rows, NULL, 0, from, to, values + from * D);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = from; h < to; h++) {
            const int64_t place = a->slots[l->group * a->tokens + first + r] * l->kv + h, row = (r * l->kv + h) * D;
            keep(a->kept, keys + row, l->keys, l->key_scales, place, D);
            keep(a->kept, values + row, l->values, l->value_scales, place, D);
        }
}

static void attend(const Step *s, const Layer *l, Own own, int64_t first, int64_t rows) {
    const int64_t width = l->heads * l->dim;
    Attention attention = attention_of(s->args, l);
    attention.q = s->q + first * width, attention.out = own.mixed;
    attention.owners = s->owners + first, attention.lengths = s->lengths + first;
    const Scratch scratch = scratch_in(&attention, own.attention);
    const int64_t group = l->heads / l->kv * l->dim;
    if (s->parts == 1)
        for (int64_t r = 0, n; r < rows; r += n) {
            n = run_at(&attention, r, rows);
            for (int64_t head = 0; head < l->kv; head++) {
                if (n > 1) attend_run(&attention, r, n, head, scratch, own.partials);
                else attend_token(&attention, r, head, rows, scratch, own.partials);
            }
            settle(s->args->given, own.mixed + r * width, n * width);
        }
    const int64_t tasks = s->parts == 1 ? 0 : rows * l->kv, last = share(tasks, 1, own.part + 1, s->parts);
    for (int64_t task = share(tasks, 1, own.part, s->parts); task < last; task++) {
        const int64_t r = task / l->kv, head = task % l->kv;
        attend_token(&attention, r, head, rows, scratch, own.partials);
        settle(s->args->given, own.mixed + r * width + head * group, group);
    }
}

static void output(const Step *s, const Layer *l, Own own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t from = share(a->hidden, UNIT, own.part, s->parts), to = share(a->hidden, UNIT, own.part + 1, s->parts);
    const Projection o = {&l->o, l->o_bias, l->sites[O], l->heads * l->dim, a->hidden};
    ready(own, o, own.mixed, rows, NULL);
    project(s, own, o, own.mixed, first, rows, from, to, own.normed + from, a->hidden);
    add_rows_to(a, s->x + first * a->hidden, own.normed + from, rows, from, to, a->hidden);
}

static void feed(const Step *s, const Layer *l, Own own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t from = share(l->inner, UNIT, own.part, s->parts), to = share(l->inner, UNIT, own.part + 1, s->parts);
    const Projection gate = {&l->gate, NULL, l->sites[GATE], a->hidden, l->inner}, up = {&l->up, NULL, l->sites[UP], a->hidden, l->inner};
    ready(own, gate, own.normed, rows, NULL);
    project(s, own, gate, own.normed, first, rows, from, to, own.act + from, l->inner);
    ready(own, up, own.normed, rows, &gate);
    project(s, own, up, own.normed, first, rows, from, to, own.up + from, l->inner);
    for (int64_t r = 0; r < rows; r++) {
        float *restrict row = own.act + r * l->inner + from;
        const float *restrict by = own.up + r * l->inner + from;
        for (int64_t i = 0; i < to - from; i++) row[i] = row[i] * sigmoid(row[i]) * by[i];
        settle(a->given, row, to - from);
    }
}

static void bring(const Step *s, const Layer *l, Own own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t from = share(a->hidden, UNIT, own.part, s->parts), to = share(a->hidden, UNIT, own.part + 1, s->parts);
    const Projection down = {&l->down, NULL, l->sites[DOWN], l->inner, a->hidden};
    ready(own, down, own.act, rows, NULL);
    project(s, own, down, own.act, first, rows, from, to, own.normed + from, a->hidden);
    add_rows_to(a, s->x + first * a->hidden, own.normed + from, rows, from, to, a->hidden);
}

/* Moves the tokens that are read, of those from `first` to `end`, together at `first`; returns their number, and in
 * `index` how many are read before them. */
static int64_t gather(const Step *s, const Layer *l, int64_t first, int64_t end, int64_t *index) {
    const Args *a = s->args;
    const int64_t hidden = a->hidden, width = l->heads * l->dim;
    *index = first;
    if (a->reads == a->tokens) return end - first;
    int64_t i = 0, count = 0;
    while (i < a->reads && a->read[i] < first) i++;
    for (*index = i; i < a->reads && a->read[i] < end; i++, count++) {
        const int64_t from = a->read[i], to = first + count;
        if (from == to) continue;
        memcpy(s->x + to * hidden, s->x + from * hidden, hidden * sizeof(float));
        memcpy(s->q + to * width, s->q + from * width, width * sizeof(float));
        s->owners[to] = s->owners[from], s->lengths[to] = s->lengths[from];
    }
    return count;
}

static void take_in(const Step *s, int64_t first, int64_t end) {
    const Args *a = s->args;
    for (int64_t t = first; t < end; t++) {
        float *restrict x = s->x + t * a->hidden;
        widen(a->given, a->embedding, a->ids[t] * a->hidden, x, a->hidden);
        if (a->scale == 1) continue;
        for (int64_t i = 0; i < a->hidden; i++) x[i] *= (float)a->scale;
        settle(a->given, x, a->hidden);
    }
    if (!a->count) return;
    memcpy(s->owners + first, a->owners + first, (end - first) * sizeof(int64_t));
    memcpy(s->lengths + first, a->lengths + first, (end - first) * sizeof(int64_t));
}

/* The head over rows whose norm is made; `index` is how many are read before them. */
static void tell(const Step *s, Own own, int64_t rows, int64_t index) {
    const Args *a = s->args;
    const int64_t from = share(a->width, UNIT, own.part, s->parts), to = share(a->width, UNIT, own.part + 1, s->parts);
    float *out = a->logits + index * a->width + from;
    make_ready(&a->head, own.normed, rows, a->hidden, own.packed);
    weight_product(&a->head, own.normed, own.packed, rows, a->hidden, from, to, out, a->width, own.room);
    for (int64_t r = 0; r < rows; r++) settle(a->given, out + r * a->width, to - from);
}

/* Where the share of a thread begins: shares cost about the same, counting a token's products and its past. */
static int64_t begin_of(const Args *a, int64_t part, int64_t parts) {
    if (!a->count) return share(a->tokens, 1, part, parts);
    const Layer *l = a->layers;
    const int64_t width = l->heads * l->dim, each = a->hidden * (2 * width + 2 * l->kv * l->dim + 3 * l->inner);
    int64_t total = 0, so_far = 0, t = 0;
    for (int64_t i = 0; i < a->tokens; i++) total += each + 4 * width * a->lengths[i];
    while (t < a->tokens && so_far < total * part / parts) so_far += each + 4 * width * a->lengths[t++];
    return t;
}

/* Blocks of about one size: a last one of a few tokens would be dear. So would places in vectors that are left empty. */
static inline int64_t even(int64_t tokens) {
    const int64_t blocks = (tokens + BLOCK - 1) / BLOCK;
    return blocks ? packed_rows((tokens + blocks - 1) / blocks) : 1;
}

#define BLOCKS(FROM, TO)                                                                                               \
    for (int64_t t = (FROM), size = even((TO) - t), rows; rows = least((TO) - t, size), t < (TO); t += rows)

static void by_tokens(const Step *s, Own own, int64_t thread) {
    const Args *a = s->args;
    const int64_t first = begin_of(a, thread, s->threads), end = begin_of(a, thread + 1, s->threads);
    int64_t stop = end, index = first;
    take_in(s, first, end);
    for (int64_t i = 0; i < a->count; i++) {
        const Layer *l = a->layers + i;
        BLOCKS(first, end) {
            norms(s, own, l->attention_norm, t, rows);
            ask(s, l, own, t, rows);
        }
        if (a->related) {
#pragma omp barrier
        }
        if (i + 1 == a->count) stop = first + gather(s, l, first, end, &index);
        BLOCKS(first, stop) {
            attend(s, l, own, t, rows);
            output(s, l, own, t, rows);
            norms(s, own, l->mlp_norm, t, rows);
            feed(s, l, own, t, rows);
            bring(s, l, own, t, rows);
        }
    }
    if (a->out && stop > first) narrow(a->given, s->x + first * a->hidden, a->out, index * a->hidden, (stop - first) * a->hidden);
    if (!a->logits) return;
    BLOCKS(first, stop) {
        norms(s, own, a->head_norm, t, rows);
        tell(s, own, rows, index + t - first);
    }
}

static void by_columns(const Step *s, Own own) {
    const Args *a = s->args;
    int64_t rows = a->tokens, index;
    if (own.part == 0) take_in(s, 0, rows);
#pragma omp barrier
    for (int64_t i = 0; i < a->count; i++) {
        const Layer *l = a->layers + i;
        norms(s, own, l->attention_norm, 0, rows);
#pragma omp barrier
        ask(s, l, own, 0, rows);
#pragma omp barrier
        if (i + 1 == a->count && a->reads < a->tokens) {
            if (own.part == 0) gather(s, l, 0, rows, &index);
            rows = a->reads;
#pragma omp barrier
        }
        attend(s, l, own, 0, rows);
#pragma omp barrier
        output(s, l, own, 0, rows);
#pragma omp barrier
        norms(s, own, l->mlp_norm, 0, rows);
#pragma omp barrier
        feed(s, l, own, 0, rows);
#pragma omp barrier
        bring(s, l, own, 0, rows);
#pragma omp barrier
    }
    if (a->out && own.part == 0) narrow(a->given, s->x, a->out, 0, rows * a->hidden);
    if (!a->logits) return;
    norms(s, own, a->head_norm, 0, rows);
#pragma omp barrier
    tell(s, own, rows, 0);
}

/* How weights of a type are multiplied: a `Way`. */
int64_t product_way(int64_t type) { return way_of(type); }

int64_t layers_memory(const Args *a) { return memory_size(a); }

void layers(const Args *a) {
    const Sizes sizes = sizes_of(a);
    float *q = a->memory + a->tokens * a->hidden, *rest = a->memory + shared_size(a, &sizes);
    int64_t *owners = (int64_t *)(q + a->tokens * sizes.q);
#pragma omp parallel num_threads(a->threads)
    {
        const int columns = has_one_block(a);
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        const Step step = {a, a->memory, q, owners, owners + a->tokens, threads, columns ? threads : 1};
        const Own own = own_in(a, &sizes, rest, thread, columns ? thread : 0);
        if (columns) by_columns(&step, own);
        else by_tokens(&step, own, thread);
    }
}
