/* Attention of many tokens whose keys and values are written already: `attention.h`, shared among threads.
 *
 * One task is one key head of a few neighbouring tokens, whose pasts are nearly the same and therefore stay in the
 * cache. Each token's past is sliced as if the token were alone.
 */
#include "attention/attention.h"

static int64_t longest_of(const Attention *a) {
    int64_t longest = 0;
    for (int64_t b = 0; b < a->batch; b++) longest = most(longest, a->lengths[b] - begin(a, b));
    return longest;
}

int attend(const Attention *a) {
    const int64_t together = shared_out(a, a->batch, a->threads), blocks = (a->batch + together - 1) / together;
    const int64_t room = scratch_size(a, together), longest = longest_of(a);
    int failed = 0;
#pragma omp parallel num_threads(a->threads) if (a->threads > 1)
    {
        float *memory = malloc((room + partials_size(a, longest) + LINE) * sizeof(float));
        if (!memory) failed = 1;
        const Scratch x = scratch_in(a, together, memory);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < blocks * a->kv; task++) {
            const int64_t head = task / blocks, first = task % blocks * together, last = least(first + together, a->batch);
            for (int64_t b = first, n; memory && b < last; b += n) {
                n = run_at(a, b, last);
                attend_run(a, b, n, head, x, at_line(memory + room));
            }
        }
        free(memory);
    }
    return failed;
}
