/* Samples one token a row from softmax(logits / temperature), by the inverse of its cumulative distribution; at
 * temperature 0 the argmax, the first of equal ones.
 *
 *   logits [R, V]   temperatures [R]   draws [R] in [0, 1)   tokens [R], -1 if the logits are not finite
 *   masks [R, ceil(V / 32)], or NULL: tokens without a bit are not sampled
 *   logprobs [R] of softmax(logits * scales [R]), of token 0 for token -1; or both are NULL
 *   room [threads, 2, V]
 *
 * A row's token depends only on that row. Sums are over whole pieces first, in fp64, so that the token is searched in
 * one piece.
 */
#include <omp.h>

#include "pointwise/logprobs.h"

enum { WORD = 32 };

typedef struct {
    const float *logits, *temperatures, *draws, *scales;
    const uint32_t *masks;
    int64_t *tokens;
    float *logprobs, *room;
    int64_t rows, width, threads;
} Args;

/* The logits, with -inf for tokens without a bit. */
static const float *left_by(const uint32_t *restrict mask, const float *restrict logits, int64_t n, float *restrict left) {
    for (int64_t i = 0; i < n; i += WORD)
        for (int64_t j = i; j < least(i + WORD, n); j++) left[j] = mask[i / WORD] >> (j - i) & 1 ? logits[j] : -INFINITY;
    return left;
}

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
    /* A sequential sum may round differently; then the last token with a positive weight is sampled. */
    for (int64_t i = least(at, (n - 1) / PIECE * PIECE); i < least(at + PIECE, n); i++) {
        if (weights[i] > 0) last = i;
        before += weights[i];
        if (before > wanted) return i;
    }
    return last;
}

static int64_t likeliest(const float *logits, int64_t n) {
    const float top = largest(logits, n);
    int64_t first = -1, unknown = 0;
    for (int64_t i = 0; i < n; i++) unknown |= logits[i] != logits[i];
    if (unknown || !(top > -INFINITY && top < INFINITY)) return -1;
    while (logits[++first] != top) {}
    return first;
}

static void choose(const Args *a, int64_t r, float *room) {
    const int64_t n = a->width;
    const float *logits = a->logits + r * n, temperature = a->temperatures[r];
    const float *left = a->masks ? left_by(a->masks + r * ((n + WORD - 1) / WORD), logits, n, room + n) : logits;
    const int64_t token = temperature > 0 ? draw_row(left, temperature, a->draws[r], n, room) : likeliest(left, n);
    a->tokens[r] = token;
    if (!a->logprobs) return;
    memcpy(room, logits, n * sizeof(float));
    scale_by(room, a->scales[r], n);
    a->logprobs[r] = logprob(room, n, most(token, 0));
}

void choose_rows(const Args *a) {
#pragma omp parallel num_threads(a->threads) if (a->threads > 1)
    {
        float *room = a->room + omp_get_thread_num() * 2 * a->width;
#pragma omp for schedule(dynamic) nowait
        for (int64_t r = 0; r < a->rows; r++) choose(a, r, room);
    }
}
