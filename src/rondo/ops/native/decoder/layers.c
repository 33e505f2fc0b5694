/* A decoder of dense layers over the tokens of one step, whole: embedding, norms, projections, rotation, attention over
 * pages, feed-forward, head. Between the products of a small model it is waking threads that costs, and whatever else is
 * called: by then weights have streamed through the caches, and its memory is far. Here threads start once a step.
 *
 * They take shares one by one, phase by phase (`phases.h`): with many tokens, parts of them through half a layer
 * (`by_tokens.h`); with few, parts of a product's columns (`by_columns.h`). The arithmetic of a token is the same in both: it
 * depends on the token and its past alone.
 *
 * Numbers between operations are fp32, rounded where the model's type would round them.
 *
 *   ids [T], rows of embedding [.., hidden]   read [reads], each above the one before, unless they are all
 *   logits [reads, width] in fp32 by the head [width, hidden], or out [reads, hidden], what the head would be given; without
 *   layers that is what the embedding gives
 *   tables [groups, requests, pages]   owners, lengths (the token counted) [T]   slots [groups, T]
 *   for each kind of rotation: cosines, sines [.., half] floats, turns [T] which row is a token's
 *   adapters [requests], each NULL or [sites, 3]: address of a [r, K], address of b [r, N], r; see `low_rank.c`
 */
#include <omp.h>

#include "decoder/by_columns.h"
#include "decoder/by_tokens.h"

/* How weights of a type are multiplied: a `Way`. */
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
