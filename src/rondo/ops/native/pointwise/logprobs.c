/* log softmax(logits * scale) of one token a row: see `logprobs.h`.
 *
 *   logits [R, V] of the type `given`   tokens, out [R]   scales [R], NULL for 1   room [threads, V]
 *
 * A row's number depends only on that row. Returns whether all tokens are in 0 to V - 1; other tokens have no number.
 */
#include <omp.h>

#include "pointwise/logprobs.h"

typedef struct {
    const void *logits;
    const int64_t *tokens;
    const float *scales;
    float *out, *room;
    int64_t rows, width, given, threads;
} Args;

int logprob_rows(const Args *a) {
    const int64_t n = a->width;
    int known = 1;
#pragma omp parallel reduction(& : known) num_threads(a->threads) if (a->threads > 1)
    {
        float *x = a->room + omp_get_thread_num() * n;
#pragma omp for schedule(dynamic) nowait
        for (int64_t r = 0; r < a->rows; r++) {
            if (a->tokens[r] < 0 || a->tokens[r] >= n) {
                known = 0;
                continue;
            }
            widen(a->given, a->logits, r * n, x, n);
            if (a->scales) scale_by(x, a->scales[r], n);
            a->out[r] = logprob(x, n, a->tokens[r]);
        }
    }
    return known;
}
