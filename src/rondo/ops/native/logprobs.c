/* log softmax(logits * scale) of one token a row, in fp32.
 *
 *   logits [R, V] of the type `given`   tokens, out [R]   scales [R], NULL where they are 1   room [threads, V]
 *
 * A row's number depends on that row alone; its sum is of whole pieces, in fp64.
 */
#include "vectors.h"

typedef struct {
    const void *logits;
    const int64_t *tokens;
    const float *scales;
    float *out, *room;
    int64_t rows, width, given, threads;
} Args;

enum { PIECE = 256 };

static float logprob(const Args *a, int64_t row, float *restrict x) {
    const int64_t n = a->width;
    widen(a->given, a->logits, row * n, x, n);
    if (a->scales)
        for (int64_t i = 0; i < n; i++) x[i] *= a->scales[row];
    const float own = x[a->tokens[row]], top = largest(x, n);
    double mass = 0;
    for (int64_t i = 0; i < n; i++) x[i] = x[i] - top < -87.0f ? 0.0f : exp_neg(x[i] - top);
    for (int64_t i = 0; i < n; i += PIECE) mass += sum_of(x + i, least(PIECE, n - i));
    return (float)((double)(own - top) - log(mass));
}

void logprob_rows(const Args *a) {
#pragma omp parallel for schedule(static) num_threads(a->threads) if (a->threads > 1)
    for (int64_t part = 0; part < a->threads; part++)
        for (int64_t r = a->rows * part / a->threads; r < a->rows * (part + 1) / a->threads; r++)
            a->out[r] = logprob(a, r, a->room + part * a->width);
}
