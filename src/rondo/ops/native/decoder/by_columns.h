/* A step of few tokens: threads share the columns of each product. */
#ifndef RONDO_BY_COLUMNS_H
#define RONDO_BY_COLUMNS_H
#include "decoder/ends.h"
#include "decoder/stage.h"

/* Phases of a layer, and of the end. */
enum { NORM, ASK, GATHER, ATTEND, OUTPUT, NORM_AGAIN, FEED, BRING, EACH_BY_COLUMNS };
enum { NORM_LAST, TELL };

/* Shares of `units` that read `numbers` of a weight, or of keys and values. */
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
#endif
