/* The log-probability of one token of a row, in fp32; sums are over whole pieces, in fp64. */
#ifndef RONDO_LOGPROBS_H
#define RONDO_LOGPROBS_H
#include "build/vectors.h"

enum { PIECE = 256 };

/* log softmax(x) [n] at `token`; overwrites x. */
static float logprob(float *restrict x, int64_t n, int64_t token) {
    const float own = x[token], top = largest(x, n);
    double mass = 0;
    for (int64_t i = 0; i < n; i++) x[i] = x[i] - top < -87.0f ? 0.0f : exp_neg(x[i] - top);
    for (int64_t i = 0; i < n; i += PIECE) mass += sum_of(x + i, least(PIECE, n - i));
    return (float)((double)(own - top) - log(mass));
}

static inline void scale_by(float *restrict x, float scale, int64_t n) {
    if (scale == 1) return;
    for (int64_t i = 0; i < n; i++) x[i] *= scale;
}
#endif
