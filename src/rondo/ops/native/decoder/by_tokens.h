/* A step of many tokens: threads share the tokens, each share through half a layer. */
#ifndef RONDO_BY_TOKENS_H
#define RONDO_BY_TOKENS_H
#include "decoder/ends.h"
#include "decoder/stage.h"

/* Phases of a layer, and of the end. */
enum { ASK_ALL, GATHER_ALL, ANSWER_ALL, EACH_BY_TOKENS };

static int64_t token_shares(const void *work, int64_t phase) {
    const Step *s = work;
    const Stage at = stage_of(s->args, phase, EACH_BY_TOKENS);
    if (at.layer == s->args->count) return at.what == 0 ? s->parts : -1;
    return at.layer < 0 || at.what != GATHER_ALL ? s->parts : gathers(s->args, at.layer);
}

/* Two ways to split: if each thread has one part, parts of similar cost, counting a token's products and its past; else
 * parts of equal token count, which fill whole vectors. */
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

/* Start of a part of the remaining tokens. */
static inline int64_t begin_of(const Step *s, int64_t rows, int64_t part) {
    return rows == s->args->tokens ? s->bounds[part] : share(rows, 1, part, s->parts);
}

/* Blocks of similar size: a last block of a few tokens would be expensive, as would empty places in vectors. */
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
#endif
