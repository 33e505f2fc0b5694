/* Attention of one new token a request over its pages: `attention.h`, shared among threads.
 *
 * One task is one slice and one key head. The thread that ends the last slice of a request's head merges them, so that
 * one long request occupies all threads.
 */
#include "attention/attention.h"

enum { NEIGHBOURS = 4 }; /* tasks that a thread takes at once; it prefetches the next one's memory while it computes one */

/* The slices, the first one of each request (and, last, their number), and the number of unfinished slices of each
 * head. partials [slices, H, stride]: the largest score, the sum of the weights relative to it, and the sum of the
 * values. */
typedef struct {
    Slice *slices;
    int64_t *firsts;
    int32_t *pending;
    float *partials;
    int64_t stride;
} Work;

static void run_task(const Attention *a, const Work *work, Scratch x, int64_t task, int64_t tasks) {
    const int64_t KV = a->kv, G = a->heads / KV, index = task / KV, head = task % KV;
    const Slice *slice = work->slices + index;
    const int64_t b = slice->request, first = work->firsts[b], slices = work->firsts[b + 1] - first;
    const Slice *next = task + 1 < tasks ? work->slices + (task + 1) / KV : NULL;
    attend_slice(a, slice, head, next, (task + 1) % KV, x, work->partials + (index * a->heads + head * G) * work->stride);
    if (__atomic_sub_fetch(work->pending + b * KV + head, 1, __ATOMIC_ACQ_REL)) return;
    for (int64_t g = 0; g < G; g++) {
        float *partial = work->partials + (first * a->heads + head * G + g) * work->stride;
        join(a, partial, slices, a->heads * work->stride, b, head * G + g);
    }
}

static int64_t count_slices(const Attention *a) {
    int64_t count = 0;
    for (int64_t b = 0; b < a->batch; b++) count += (a->lengths[b] - begin(a, b) + SLICE - 1) / SLICE;
    return count;
}

static void cut(const Attention *a, Work *work) {
    int64_t count = 0;
    for (int64_t b = 0; b < a->batch; b++) {
        work->firsts[b] = count;
        for (int64_t from = begin(a, b); from < a->lengths[b]; from += SLICE)
            work->slices[count++] = (Slice){b, from, least(from + SLICE, a->lengths[b])};
        for (int64_t h = 0; h < a->kv; h++) work->pending[b * a->kv + h] = (int32_t)(count - work->firsts[b]);
    }
    work->firsts[a->batch] = count;
}

static int run_all(const Attention *a, const Work *work, int64_t tasks) {
    int failed = 0;
#pragma omp parallel num_threads(a->threads) if (a->threads > 1)
    {
        float *memory = malloc(scratch_size(a, 1) * sizeof(float));
        if (!memory) failed = 1;
        const Scratch x = scratch_in(a, 1, memory);
#pragma omp for schedule(dynamic, NEIGHBOURS)
        for (int64_t task = 0; task < tasks; task++)
            if (memory) run_task(a, work, x, task, tasks);
        free(memory);
    }
    return failed;
}

int paged_decode(const Attention *a) {
    const int64_t count = count_slices(a);
    Work work = {.stride = part_size(a)};
    work.slices = malloc(count * sizeof(Slice));
    work.firsts = malloc((a->batch + 1) * sizeof(int64_t));
    work.pending = malloc(a->batch * a->kv * sizeof(int32_t));
    float *partials = malloc((count * a->heads * work.stride + LINE) * sizeof(float));
    int failed = !work.slices || !work.firsts || !work.pending || !partials;
    if (!failed) {
        work.partials = at_line(partials);
        cut(a, &work);
        failed = run_all(a, &work, count * a->kv);
    }
    free(work.slices), free(work.firsts), free(work.pending), free(partials);
    return failed;
}
