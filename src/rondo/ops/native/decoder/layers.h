/* Arguments of the compiled layers, and the layout of their memory: see `layers.c`. */
#ifndef RONDO_LAYERS_H
#define RONDO_LAYERS_H
#include "attention/attention.h"
#include "quantized/quantized.h"
#include "build/shares.h"

typedef struct {
    Weight q, k, v, o, gate, up, down;
    const void *attention_norm, *q_bias, *k_bias, *v_bias, *q_norm, *k_norm, *o_bias, *mlp_norm;
    void *keys, *values;
    float *key_scales, *value_scales;
    int64_t heads, kv, dim, rope, half, inner, window, group; /* rope is below 0 without rotation */
    int64_t sites[7]; /* indices of its projections in the adapters' tables */
    double scale;
} Layer;

enum { Q, K, V, O, GATE, UP, DOWN };

typedef struct {
    Weight head;
    const Layer *layers;
    const void *embedding, *head_norm;
    void *out;
    float *logits; /* this or `out` is NULL */
    const int64_t *ids, *tables, *owners, *lengths, *slots, *read;
    const float *const *cosines, *const *sines;
    const int64_t *const *turns;
    const int64_t *const *adapters;
    float *memory;
    int64_t count, tokens, reads, hidden, width, given, kept, size, pages, longest, threads, related, requests;
    double eps, offset, scale;
} Args;

/* Tokens processed together: enough for weights to be read as fast as they are used. With bf16 instructions more are
 * needed. */
#if defined HAS_TILES || defined HAS_DOTS
enum { BLOCK = 128 };
#else
enum { BLOCK = 32 };
#endif

/* Columns of gate and up computed at a time, so that they stay in the cache until they are multiplied. */
enum { GATED = 256 };

/* The sizes of the widest layer. */
typedef struct {
    int64_t q, kv, inner, in, room, attention, partials;
} Sizes;

/* State shared by all threads: the row of every token, its queries, and its request. */
typedef struct {
    const Args *args;
    float *x, *q;
    int64_t *owners, *lengths, *bounds;
    int64_t parts; /* parts of the tokens, split at `bounds` */
} Step;

/* One thread's memory, and its block of tokens: one block for all threads if columns are shared. `part` is the thread's
 * of `parts` of the columns; `packed` is ready for the weight `ready`, or NULL. */
typedef struct {
    float *normed, *kv, *mixed, *act, *gated, *up, *packed, *room, *attention, *partials;
    const Weight *ready;
    int64_t part, parts;
} Own;

static Attention attention_of(const Args *a, const Layer *l) {
    return (Attention){.keys = l->keys, .values = l->values, .key_scales = l->key_scales, .value_scales = l->value_scales,
                       .tables = a->tables + l->group * a->requests * a->pages, .kept = a->kept, .given = F32, .asked = a->given,
                       .heads = l->heads, .kv = l->kv, .dim = l->dim, .value_dim = l->dim, .size = a->size, .pages = a->pages, .window = l->window,
                       .scale = (float)l->scale};
}

/* Whether columns are shared: with few tokens, or with one block of tokens if weights are so large that each thread has
 * a part of every product and reads only that. */
static inline int has_one_block(const Args *a) {
    const int large = a->count && a->hidden * a->layers->inner >= LARGE * a->threads;
    return shares_columns(a->tokens, a->threads) || (a->threads > 1 && large && a->tokens <= BLOCK);
}

static inline int64_t block_of(const Args *a) { return has_one_block(a) ? a->tokens : least(a->tokens, BLOCK); }

static Sizes sizes_of(const Args *a) {
    Sizes s = {.in = a->hidden};
    for (int64_t i = 0; i < a->count; i++) {
        const Layer *l = a->layers + i;
        const Attention attention = attention_of(a, l);
        s.q = most(s.q, l->heads * l->dim);
        s.kv = most(s.kv, l->kv * l->dim);
        s.inner = most(s.inner, l->inner);
        s.in = most(s.in, most(l->heads * l->dim, l->inner));
        s.attention = most(s.attention, scratch_size(&attention, neighbours(&attention)));
        s.partials = most(s.partials, partials_size(&attention, a->longest));
    }
    s.room = rounded(weight_room(block_of(a), s.in)), s.attention = rounded(s.attention), s.partials = rounded(s.partials);
    return s;
}

static inline int64_t own_size(const Args *a, const Sizes *s) {
    return rounded(ready_size(block_of(a), s->in)) + 2 * block_of(a) * GATED + s->room + s->attention + s->partials;
}

/* Size of the feed-forward's hidden rows, as floats or in pairs of full tiles. */
static inline int64_t fed_size(const Args *a, const Sizes *s) {
    return most(block_of(a) * s->inner, (block_of(a) + SIDE - 1) / SIDE * SIDE * strips(s->inner) * STRIP / 2);
}

static inline int64_t block_size(const Args *a, const Sizes *s) {
    return block_of(a) * (a->hidden + 2 * s->kv + s->q) + rounded(fed_size(a, s));
}

static inline int64_t shared_size(const Args *a, const Sizes *s) { return rounded(a->tokens * (a->hidden + s->q + 6) + 4); }

/* Number of parts of the tokens: a block each, and a multiple of the threads. */
static inline int64_t parts_of(const Args *a) { return blocks_of(a->tokens, BLOCK, a->threads); }

/* Number of floats in `memory`: shared state, each thread's, and blocks. */
static inline int64_t memory_size(const Args *a) {
    const Sizes s = sizes_of(a);
    return shared_size(a, &s) + a->threads * own_size(a, &s) + (has_one_block(a) ? 1 : a->threads) * block_size(a, &s);
}

static Own own_in(const Args *a, const Sizes *s, float *memory, int64_t thread) {
    float *room = memory + thread * own_size(a, s), *attention = room + s->room, *partials = attention + s->attention;
    float *gated = partials + s->partials, *up = gated + block_of(a) * GATED, *packed = up + block_of(a) * GATED;
    float *normed = memory + a->threads * own_size(a, s) + (has_one_block(a) ? 0 : thread * block_size(a, s));
    const int64_t block = block_of(a);
    float *kv = normed + block * a->hidden, *mixed = kv + block * 2 * s->kv, *act = mixed + block * s->q;
    return (Own){normed, kv, mixed, act, gated, up, packed, room, attention, partials, NULL, 0, 1};
}
#endif
