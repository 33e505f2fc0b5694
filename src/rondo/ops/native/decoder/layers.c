/* A step of a decoder of dense layers: embedding, norms, projections, rotation, attention over pages, feed-forward,
 * head. Between the products of a small model the cost is dominated by waking threads and by calls to other code, whose
 * memory the weights have evicted from the caches. Here threads start once a step.
 *
 * They take shares one by one, phase by phase (`phases.h`): with many tokens, groups of tokens through half a layer
 * (`by_tokens.h`); with few, parts of a product's columns (`by_columns.h`). The arithmetic of a token is the same in
 * both: it depends only on the token and its past.
 *
 * Numbers between operations are fp32, rounded where the model's type would round them.
 *
 *   ids [T], rows of embedding [.., hidden]   read [reads], ascending, unless all are read
 *   logits [reads, width] in fp32 by the head [width, hidden], or out [reads, hidden], the input of the head; without
 *   layers that is the embedding
 *   tables [groups, requests, pages]   owners, lengths (including the token) [T]   slots [groups, T]
 *   for each kind of rotation: cosines, sines [.., half] floats, turns [T] the row of each token
 *   adapters [requests], each NULL or [sites, 3]: address of a [r, K], address of b [r, N], r; see `low_rank.c`
 */
#include <omp.h>

#include "decoder/by_columns.h"
#include "decoder/by_tokens.h"

/* The way in which weights of a type are multiplied: a `Way`. */
int64_t product_way(int64_t type) { return way_of(type); }

int64_t layers_memory(const Args *a) { return memory_size(a); }

void layers(const Args *a) {
    const Sizes sizes = sizes_of(a);
    float *q = a->memory + a->tokens * a->hidden, *rest = a->memory + shared_size(a, &sizes);
    int64_t *owners = (int64_t *)(q + a->tokens * sizes.q), *lengths = owners + a->tokens, *bounds = lengths + a->tokens;
    const Step step = {a, a->memory, q, owners, lengths, bounds, parts_of(a)};
    const int columns = has_one_block(a);
    if (!columns) cut_tokens(&step);
    Phases phases = phases_of(columns ? column_shares : token_shares, &step);
#pragma omp parallel num_threads(a->threads) if (a->threads > 1)
    {
        Own own = own_in(a, &sizes, rest, omp_get_thread_num());
        Taken taken = {-1, 0, 0};
        for (int64_t phase = -1; take_share(&phases, &taken); phase = taken.phase) {
            if (phase != taken.phase) own.ready = NULL;
            if (columns) take_columns(&step, &own, taken);
            else take_tokens(&step, &own, taken);
        }
    }
}
