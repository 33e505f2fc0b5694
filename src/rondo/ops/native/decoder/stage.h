/* The position of a phase within a step, and its tokens. */
#ifndef RONDO_STAGE_H
#define RONDO_STAGE_H
#include "decoder/layers.h"
#include "quantized/phases.h"

/* Phases: embedding of tokens; the phases of each layer; the phases of the end. */
typedef struct {
    int64_t layer, what; /* layer is -1 at the start, and the number of layers at the end */
} Stage;

static inline Stage stage_of(const Args *a, int64_t phase, int64_t each) {
    if (phase == 0) return (Stage){-1, 0};
    const int64_t layer = least((phase - 1) / each, a->count);
    return (Stage){layer, phase - 1 - layer * each};
}

static inline const Layer *layer_at(const Args *a, Stage at) {
    return at.layer < 0 || at.layer == a->count ? NULL : a->layers + at.layer;
}

/* In the last layer, only the rows to read remain once all keys and values are written. */
static inline int gathers(const Args *a, int64_t layer) { return layer == a->count - 1 && a->reads < a->tokens; }

static inline int64_t rows_at(const Args *a, Stage at, int64_t gather) {
    return a->count && (at.layer == a->count || (at.layer == a->count - 1 && at.what > gather)) ? a->reads : a->tokens;
}
#endif
