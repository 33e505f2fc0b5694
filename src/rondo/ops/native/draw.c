/* One token a row from softmax(logits / temperature), by the inverse of its cumulative distribution.
 *
 *   logits [R, V]   temperatures [R], above 0   draws [R] in [0, 1)   tokens [R], -1 where the logits are not finite
 *   weights [threads, V]
 *
 * A row's token depends on that row alone. Sums are of whole pieces first, in fp64: what is drawn is looked for in one piece.
 */
#include "vectors.h"

typedef struct {
    const float *logits, *temperatures, *draws;
    int64_t *tokens;
    float *weights;
    int64_t rows, width, threads;
} Args;

enum { PIECE = 256 };

static int64_t draw_row(const float *restrict logits, float temperature, float draw, int64_t n, float *restrict weights) {
    const float top = largest(logits, n), scale = 1 / temperature;
    for (int64_t i = 0; i < n; i++) {
        const float x = (logits[i] - top) * scale;
        weights[i] = x < -87.0f ? 0.0f : exp_neg(x);
    }
    double mass = 0, before = 0;
    for (int64_t i = 0; i < n; i += PIECE) mass += sum_of(weights + i, least(PIECE, n - i));
    if (!(mass > 0 && mass < INFINITY)) return -1;
    const double wanted = mass * draw;
    int64_t at = 0, last = 0;
    for (; at < n; at += PIECE) {
        const double own = sum_of(weights + at, least(PIECE, n - at));
        if (before + own > wanted) break;
        before += own;
    }
    /* One by one the sum may round differently: then it is the last token there that may be drawn. */
    for (int64_t i = least(at, (n - 1) / PIECE * PIECE); i < least(at + PIECE, n); i++) {
        if (weights[i] > 0) last = i;
        before += weights[i];
        if (before > wanted) return i;
    }
    return last;
}

void draw_rows(const Args *a) {
#pragma omp parallel for schedule(static) num_threads(a->threads) if (a->threads > 1)
    for (int64_t part = 0; part < a->threads; part++)
        for (int64_t r = a->rows * part / a->threads; r < a->rows * (part + 1) / a->threads; r++)
            a->tokens[r] = draw_row(a->logits + r * a->width, a->temperatures[r], a->draws[r], a->width, a->weights + part * a->width);
}
