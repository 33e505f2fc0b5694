/* A decoder of dense layers over the tokens of one step, whole: embedding, norms, projections, rotation, attention over
 * pages, feed-forward, head. Between the products of a small model it is waking threads that costs, and whatever else is
 * called: by then weights have streamed through the caches, and its memory is far. Here threads start once a step.
 *
 * They take shares one by one, phase by phase (`phases.h`): with many tokens, parts of them through half a layer; with few,
 * parts of a product's columns. The arithmetic of a token is the same in both: it depends on the token and its past alone.
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
#include "phases.h"

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

/* Columns `from` to `to` for tokens `first` on, whose x are made ready unless they are so already; out is where column `from`
 * goes. */
static void project(const Step *s, Own *own, Projection p, const float *x, int64_t first, int64_t rows, int64_t from,
                    int64_t to, float *out, int64_t apart) {
    const int64_t type = s->args->given;
    if (!own->ready || !as_ready(own->ready, p.weight)) make_ready(p.weight, x, rows, p.in, own->packed);
    own->ready = p.weight;
    weight_product(p.weight, x, own->packed, rows, p.in, from, to, out, apart, own->room);
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

/* Where the thread's part of `count` things begins, and where it ends. */
static inline int64_t part_from(const Own *own, int64_t count, int64_t unit) { return share(count, unit, own->part, own->parts); }
static inline int64_t part_to(const Own *own, int64_t count, int64_t unit) { return share(count, unit, own->part + 1, own->parts); }

static void norms(const Step *s, const Own *own, const void *weight, int64_t first, int64_t rows) {
    const int64_t hidden = s->args->hidden, last = part_to(own, rows, 1);
    for (int64_t r = part_from(own, rows, 1); r < last; r++)
        norm(s->args, s->x + (first + r) * hidden, weight, own->normed + r * hidden, hidden);
}

/* Heads `from` to `to` of a projection, with their norm and rotation where they have one. */
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

/* Heads `from` to `to` of keys or values, which go to the pages. */
static void keep_heads(const Step *s, const Layer *l, int64_t first, int64_t rows, float *heads, int64_t from, int64_t to,
                       void *pages, float *scales) {
    const Args *a = s->args;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = from; h < to; h++)
            keep(a->kept, heads + (r * l->kv + h) * l->dim, pages, scales,
                 a->slots[l->group * a->tokens + first + r] * l->kv + h, l->dim);
}

/* Queries of tokens `first` on; their keys and values go to the pages. What is cut into parts is the heads of all three, one
 * after another. */
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

/* Neighbours that are one task with a key head: those of one request see their past together. */
static inline int64_t tokens_of_task(const Args *a, const Attention *attention) { return a->related ? neighbours(attention) : 1; }

static inline int64_t attention_tasks(const Args *a, const Layer *l, int64_t rows) {
    const Attention attention = attention_of(a, l);
    const int64_t together = tokens_of_task(a, &attention);
    return (rows + together - 1) / together * l->kv;
}

static void attend(const Step *s, const Layer *l, const Own *own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t width = l->heads * l->dim, group = l->heads / l->kv * l->dim, tasks = attention_tasks(a, l, rows);
    Attention attention = attention_of(a, l);
    attention.q = s->q + first * width, attention.out = own->mixed;
    attention.owners = s->owners + first, attention.lengths = s->lengths + first;
    const Scratch scratch = scratch_in(&attention, own->attention);
    const int64_t together = tokens_of_task(a, &attention), last = part_to(own, tasks, 1);
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

static void feed(const Step *s, const Layer *l, Own *own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t from = part_from(own, l->inner, UNIT), to = part_to(own, l->inner, UNIT);
    const Projection gate = {&l->gate, NULL, l->sites[GATE], a->hidden, l->inner}, up = {&l->up, NULL, l->sites[UP], a->hidden, l->inner};
    project(s, own, gate, own->normed, first, rows, from, to, own->act + from, l->inner);
    project(s, own, up, own->normed, first, rows, from, to, own->up + from, l->inner);
    for (int64_t r = 0; r < rows; r++) {
        float *restrict row = own->act + r * l->inner + from;
        const float *restrict by = own->up + r * l->inner + from;
        for (int64_t i = 0; i < to - from; i++) row[i] = row[i] * sigmoid(row[i]) * by[i];
        settle(a->given, row, to - from);
    }
}

static void bring(const Step *s, const Layer *l, Own *own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t from = part_from(own, a->hidden, UNIT), to = part_to(own, a->hidden, UNIT);
    const Projection down = {&l->down, NULL, l->sites[DOWN], l->inner, a->hidden};
    project(s, own, down, own->act, first, rows, from, to, own->normed + from, a->hidden);
    add_rows_to(a, s->x + first * a->hidden, own->normed + from, rows, from, to, a->hidden);
}

/* Moves the tokens that are read together at the first one. */
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

/* What is asked for of tokens `first` on: what the head would be given. */
static void hand_over(const Step *s, int64_t first, int64_t rows) {
    const int64_t hidden = s->args->hidden;
    narrow(s->args->given, s->x + first * hidden, s->args->out, first * hidden, rows * hidden);
}

/* The head over rows whose norm is made. */
static void tell(const Step *s, Own *own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t from = part_from(own, a->width, UNIT), to = part_to(own, a->width, UNIT);
    float *out = a->logits + first * a->width + from;
    if (!own->ready) make_ready(&a->head, own->normed, rows, a->hidden, own->packed);
    own->ready = &a->head;
    weight_product(&a->head, own->normed, own->packed, rows, a->hidden, from, to, out, a->width, own->room);
    for (int64_t r = 0; r < rows; r++) settle(a->given, out + r * a->width, to - from);
}

/* Phases are: tokens are taken in; those of each layer; those of the end. */
typedef struct {
    int64_t layer, what; /* layer is -1 at the start, and their number at the end */
} Stage;

static inline Stage stage_of(const Args *a, int64_t phase, int64_t each) {
    if (phase == 0) return (Stage){-1, 0};
    const int64_t layer = least((phase - 1) / each, a->count);
    return (Stage){layer, phase - 1 - layer * each};
}

static inline const Layer *layer_at(const Args *a, Stage at) {
    return at.layer < 0 || at.layer == a->count ? NULL : a->layers + at.layer;
}

/* In the last layer only tokens that are read are left once all keys and values are kept. */
static inline int gathers(const Args *a, int64_t layer) { return layer == a->count - 1 && a->reads < a->tokens; }

static inline int64_t rows_at(const Args *a, Stage at, int64_t gather) {
    return a->count && (at.layer == a->count || (at.layer == a->count - 1 && at.what > gather)) ? a->reads : a->tokens;
}

/* By tokens: phases of a layer, and of the end. */
enum { ASK_ALL, GATHER_ALL, ANSWER_ALL, EACH_BY_TOKENS };

static int64_t token_shares(const void *work, int64_t phase) {
    const Step *s = work;
    const Stage at = stage_of(s->args, phase, EACH_BY_TOKENS);
    if (at.layer == s->args->count) return at.what == 0 ? s->parts : -1;
    return at.layer < 0 || at.what != GATHER_ALL ? s->parts : gathers(s->args, at.layer);
}

/* Two cuts: parts of about one cost, counting a token's products and its past, where each thread has one; else parts of as
 * many tokens, whose vectors have no empty places. */
static void cut_tokens(const Step *s) {
    const Args *a = s->args;
    const Layer *l = a->layers;
    const int64_t unit = s->parts > a->threads ? ROWS : 1;
    for (int64_t part = 0; part <= s->parts; part++) s->bounds[part] = share(a->tokens, unit, part, s->parts);
    if (!a->count || s->parts > a->threads) return;
    const int64_t width = l->heads * l->dim, each = a->hidden * (2 * width + 2 * l->kv * l->dim + 3 * l->inner);
    int64_t total = 0, so_far = 0, part = 1;
    for (int64_t t = 0; t < a->tokens; t++) total += each + 4 * width * a->lengths[t];
    for (int64_t t = 0; t < a->tokens; so_far += each + 4 * width * a->lengths[t++])
        for (; part < s->parts && so_far >= total * part / s->parts; part++) s->bounds[part] = t;
    for (; part < s->parts; part++) s->bounds[part] = a->tokens;
}

/* Where a part of the tokens begins: of those that are left. */
static inline int64_t begin_of(const Step *s, int64_t rows, int64_t part) {
    return rows == s->args->tokens ? s->bounds[part] : share(rows, 1, part, s->parts);
}

/* Blocks of about one size: a last one of a few tokens would be dear. So would places in vectors that are left empty. */
static inline int64_t even(int64_t tokens) {
    const int64_t blocks = (tokens + BLOCK - 1) / BLOCK;
    return blocks ? packed_rows((tokens + blocks - 1) / blocks) : 1;
}

static void answer(const Step *s, const Layer *l, Own *own, int64_t first, int64_t rows) {
    attend(s, l, own, first, rows);
    own->ready = NULL;
    output(s, l, own, first, rows);
    norms(s, own, l->mlp_norm, first, rows);
    own->ready = NULL;
    feed(s, l, own, first, rows);
    own->ready = NULL;
    bring(s, l, own, first, rows);
}

static void end(const Step *s, Own *own, int64_t first, int64_t rows) {
    if (s->args->out) hand_over(s, first, rows);
    if (!s->args->logits) return;
    norms(s, own, s->args->head_norm, first, rows);
    tell(s, own, first, rows);
}

static void take_tokens(const Step *s, Own *own, Taken t) {
    const Args *a = s->args;
    const Stage at = stage_of(a, t.phase, EACH_BY_TOKENS);
    const Layer *l = layer_at(a, at);
    if (l && at.what == GATHER_ALL) {
        gather(s, l);
        return;
    }
    const int64_t all = rows_at(a, at, GATHER_ALL), last = begin_of(s, all, t.share + 1);
    int64_t first = begin_of(s, all, t.share);
    if (at.layer < 0) {
        take_in(s, first, last);
        return;
    }
    for (int64_t rows, size = even(last - first); first < last; first += rows) {
        rows = least(last - first, size);
        own->ready = NULL;
        if (at.layer == a->count) end(s, own, first, rows);
        else if (at.what == ANSWER_ALL) answer(s, l, own, first, rows);
        else {
            norms(s, own, l->attention_norm, first, rows);
            ask(s, l, own, first, rows);
        }
    }
}

/* By columns: phases of a layer, and of the end. */
enum { NORM, ASK, GATHER, ATTEND, OUTPUT, NORM_AGAIN, FEED, BRING, EACH_BY_COLUMNS };
enum { NORM_LAST, TELL };

/* Of `units` that meet `numbers` of a weight, or of keys and values. */
static inline int64_t some_shares(const Args *a, int64_t units, int64_t numbers) { return shares_of(units, numbers, a->threads); }

static int64_t column_shares(const void *work, int64_t phase) {
    const Step *s = work;
    const Args *a = s->args;
    const Stage at = stage_of(a, phase, EACH_BY_COLUMNS);
    const int64_t rows = rows_at(a, at, GATHER), some = least(rows, a->threads), hidden = (a->hidden + UNIT - 1) / UNIT;
    if (at.layer < 0) return 1;
    if (at.layer == a->count) {
        if (at.what == NORM_LAST) return a->logits ? some : 1;
        return at.what == TELL && a->logits ? some_shares(a, (a->width + UNIT - 1) / UNIT, a->width * a->hidden) : -1;
    }
    const Layer *l = a->layers + at.layer;
    const int64_t heads = l->heads + 2 * l->kv;
    switch (at.what) {
    case NORM: case NORM_AGAIN: return some;
    case ASK: return some_shares(a, heads, heads * l->dim * a->hidden);
    case GATHER: return gathers(a, at.layer);
    case ATTEND: return some_shares(a, attention_tasks(a, l, rows), 2 * rows * l->kv * l->dim * a->longest);
    case OUTPUT: return some_shares(a, hidden, a->hidden * l->heads * l->dim);
    case FEED: return some_shares(a, (l->inner + UNIT - 1) / UNIT, 2 * a->hidden * l->inner);
    default: return some_shares(a, hidden, a->hidden * l->inner);
    }
}

static void take_columns(const Step *s, Own *own, Taken t) {
    const Args *a = s->args;
    const Stage at = stage_of(a, t.phase, EACH_BY_COLUMNS);
    const Layer *l = layer_at(a, at);
    const int64_t rows = rows_at(a, at, GATHER);
    own->part = t.share, own->parts = t.count;
    if (at.layer < 0) take_in(s, 0, rows);
    else if (l)
        switch (at.what) {
        case NORM: norms(s, own, l->attention_norm, 0, rows); break;
        case ASK: ask(s, l, own, 0, rows); break;
        case GATHER: gather(s, l); break;
        case ATTEND: attend(s, l, own, 0, rows); break;
        case OUTPUT: output(s, l, own, 0, rows); break;
        case NORM_AGAIN: norms(s, own, l->mlp_norm, 0, rows); break;
        case FEED: feed(s, l, own, 0, rows); break;
        default: bring(s, l, own, 0, rows);
        }
    else if (at.what == TELL) tell(s, own, 0, rows);
    else {
        if (a->out) hand_over(s, 0, rows);
        if (a->logits) norms(s, own, a->head_norm, 0, rows);
    }
}

/* How weights of a type are multiplied: a `Way`. */
int64_t product_way(int64_t type) { return way_of(type); }

int64_t layers_memory(const Args *a) { return memory_size(a); }

void layers(const Args *a) {
    const Sizes sizes = sizes_of(a);
    float *q = a->memory + a->tokens * a->hidden, *rest = a->memory + shared_size(a, &sizes);
    int64_t *owners = (int64_t *)(q + a->tokens * sizes.q), *lengths = owners + a->tokens, *bounds = lengths + a->tokens;
    const Step step = {a, a->memory, q, owners, lengths, bounds, parts_of(a)};
    const int columns = has_one_block(a);
    if (!columns) cut_tokens(&step);
    Phases phases = phases_of(columns ? column_shares : token_shares, &step);
#pragma omp parallel num_threads(a->threads) if (a->threads > 1)
    {
        Own own = own_in(a, &sizes, rest, omp_get_thread_num());
        Taken taken = {-1, 0, 0};
        for (int64_t phase = -1; take_share(&phases, &taken); phase = taken.phase) {
            if (phase != taken.phase) own.ready = NULL;
            if (columns) take_columns(&step, &own, taken);
            else take_tokens(&step, &own, taken);
        }
    }
}
