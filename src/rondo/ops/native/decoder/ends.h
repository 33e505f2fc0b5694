/* The start and end of a step: embedding of the tokens, and hidden states or logits of the rows to read. */
#ifndef RONDO_ENDS_H
#define RONDO_ENDS_H
#include "decoder/operations.h"

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

/* Copies the hidden states before the head from token `first` to the output. */
static void hand_over(const Step *s, int64_t first, int64_t rows) {
    const int64_t hidden = s->args->hidden;
    narrow(s->args->given, s->x + first * hidden, s->args->out, first * hidden, rows * hidden);
}

/* Applies the head to normalized rows. */
static void tell(const Step *s, Own *own, int64_t first, int64_t rows) {
    const Args *a = s->args;
    const int64_t from = part_from(own, a->width, UNIT), to = part_to(own, a->width, UNIT);
    float *out = a->logits + first * a->width + from;
    if (!own->ready) make_ready(&a->head, own->normed, rows, a->hidden, own->packed);
    own->ready = &a->head;
    weight_product(&a->head, own->normed, own->packed, rows, a->hidden, from, to, out, a->width, own->room);
    for (int64_t r = 0; r < rows; r++) settle(a->given, out + r * a->width, to - from);
}
#endif
