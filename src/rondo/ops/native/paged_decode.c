/* Attention of one new token a request over its pages, with the writing of its key and value.
 *
 * A request's past is cut into slices of a fixed length. One task is one slice and one key head: it scores the slice
 * against the query heads that share the key head and sums the values. Who ends the last slice of a request's head puts
 * them together, in their order. So all arithmetic depends on the request alone: results do not change with the batch
 * or the number of threads, and one long request keeps all threads busy.
 *
 *   keys   [blocks, size, KV, D]     values [blocks, size, KV, DV]   of the type `kept`
 *   key_scales, value_scales [blocks, size, KV] where it has them, else NULL
 *   q      [B, H, D]   k [B, KV, D]  v [B, KV, DV]  out [B, H, DV]   of the type `given`
 *   tables [B, pages]  lengths [B] (the new token counted)  slots [B]  sinks [H] float or NULL
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

typedef struct {
    void *keys, *values;
    float *key_scales, *value_scales;
    const void *q, *k, *v;
    void *out;
    const int64_t *tables, *lengths, *slots;
    const float *sinks;
    int64_t kept, given, batch, heads, kv, dim, value_dim, size, pages, window, threads;
    float scale, softcap;
} Args;

enum { SLICE = 256, TILE = 16, LANES = 8 };

typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float Half __attribute__((vector_size(2 * LANES)));
typedef int32_t HalfIndex __attribute__((vector_size(2 * LANES)));

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (HalfIndex){__VA_ARGS__})
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

static inline int64_t padded(int64_t dim) { return (dim + LANES - 1) / LANES * LANES; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Part of a request's past: tokens `from` to `to`, and what each query head makes of them (see `Partial`). */
typedef struct {
    int64_t request, from, to;
} Slice;

/* The slices, the first one of each request (and, last, their number), and how many of each head are still to come.
 * partials [slices, H, stride]: the largest score, the sum of the weights relative to it, and the sum of the values. */
typedef struct {
    Slice *slices;
    int64_t *firsts;
    int32_t *pending;
    float *partials;
    int64_t stride;
} Work;

/* What one thread needs: the scaled query, a slice's scores, and of a tile the scales and the rows as floats. Padding in them is 0. */
typedef struct {
    float *query, *scores, *scales, *keys, *values;
} Scratch;

/* Cephes' expf without its special cases: arguments are never above 0 here. */
static inline float exp_neg(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = floorf(x * 1.44269504088896341f + 0.5f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { int32_t i; float f; } power = {((int32_t)n + 127) << 23};
    return p * power.f;
}

static inline Half halved(Vec x) {
    union { Vec whole; Half halves[2]; } u = {x};
    return u.halves[0] + u.halves[1];
}

/* Products of a query with rows that are `apart` floats from one to the next, four at a time so that sums of lanes are
 * shared; the last row stands in for missing ones, so that a row's product does not depend on the others. */
ALWAYS_INLINE void dot(const float *query, const float *rows, int64_t apart, int64_t count, float *out, const int64_t D) {
    for (int64_t t = 0; t < count; t += 4) {
        const int64_t last = count - 1 - t;
        const float *a = rows + t * apart, *b = a + least(1, last) * apart, *c = a + least(2, last) * apart,
                    *d = a + least(3, last) * apart;
        Vec sa = {0}, sb = {0}, sc = {0}, sd = {0};
        for (int64_t i = 0; i < D; i += LANES) {
            const Vec q = *(const Vec *)(query + i);
            sa += q * *(const Vec *)(a + i);
            sb += q * *(const Vec *)(b + i);
            sc += q * *(const Vec *)(c + i);
            sd += q * *(const Vec *)(d + i);
        }
        const Half ha = halved(sa), hb = halved(sb), hc = halved(sc), hd = halved(sd);
        const Half ab = SHUFFLE(ha, hb, 0, 4, 1, 5) + SHUFFLE(ha, hb, 2, 6, 3, 7);
        const Half cd = SHUFFLE(hc, hd, 0, 4, 1, 5) + SHUFFLE(hc, hd, 2, 6, 3, 7);
        const Half all = SHUFFLE(ab, cd, 0, 1, 4, 5) + SHUFFLE(ab, cd, 2, 3, 6, 7);
        if (last >= 3) memcpy(out + t, &all, sizeof all);
        else memcpy(out + t, &all, (last + 1) * sizeof(float));
    }
}

/* sum [D] += weights [count] @ rows [count, D]. */
ALWAYS_INLINE void add(const float *weights, const float *rows, int64_t apart, int64_t count, float *sum, const int64_t D) {
    int64_t i = 0;
    for (; i + 4 * LANES <= D; i += 4 * LANES) {
        Vec *s = (Vec *)(sum + i);
        Vec a = s[0], b = s[1], c = s[2], d = s[3];
        for (int64_t t = 0; t < count; t++) {
            const Vec *row = (const Vec *)(rows + t * apart + i);
            a += weights[t] * row[0];
            b += weights[t] * row[1];
            c += weights[t] * row[2];
            d += weights[t] * row[3];
        }
        s[0] = a, s[1] = b, s[2] = c, s[3] = d;
    }
    for (; i < D; i += LANES) {
        Vec a = *(Vec *)(sum + i);
        for (int64_t t = 0; t < count; t++) a += weights[t] * *(const Vec *)(rows + t * apart + i);
        *(Vec *)(sum + i) = a;
    }
}

/* Loops over a size that the compiler knows become a few vector instructions. */
#define FOR_SIZE(NAME)                                                                                                 \
    static void NAME##_rows(const float *x, const float *rows, int64_t apart, int64_t count, float *out, int64_t D) {  \
        if (D == 32) NAME(x, rows, apart, count, out, 32);                                                             \
        else if (D == 64) NAME(x, rows, apart, count, out, 64);                                                        \
        else if (D == 128) NAME(x, rows, apart, count, out, 128);                                                      \
        else NAME(x, rows, apart, count, out, D);                                                                      \
    }
FOR_SIZE(dot)
FOR_SIZE(add)

/* The tokens from `t` on, at most to `to`, that lie in one page and fill one tile; `row` is where they begin. */
static inline int64_t tile_at(const Args *a, int64_t request, int64_t t, int64_t to, int64_t *row) {
    const int64_t page = t / a->size;
    *row = a->tables[request * a->pages + page] * a->size + t % a->size;
    return least(least(to, (page + 1) * a->size) - t, TILE);
}

static inline void read_scales(const float *from, int64_t step, int64_t count, float *restrict to) {
    for (int64_t i = 0; i < count; i++) to[i] = from[i * step];
}

static inline void multiply(float *restrict row, const float *restrict by, int64_t count) {
    for (int64_t i = 0; i < count; i++) row[i] *= by[i];
}

static void write_row(const Args *a, int64_t request, int64_t head, float *row) {
    const int64_t from = request * a->kv + head, to = a->slots[request] * a->kv + head;
    widen(a->given, a->k, from * a->dim, row, a->dim);
    keep(a->kept, row, a->keys, a->key_scales, to, a->dim);
    widen(a->given, a->v, from * a->value_dim, row, a->value_dim);
    keep(a->kept, row, a->values, a->value_scales, to, a->value_dim);
}

/* By lanes: one after another, each comparison would wait for the one before. */
static float largest(const float *row, int64_t count) {
    float lanes[LANES], most = row[0];
    for (int64_t i = 0; i < LANES; i++) lanes[i] = most;
    int64_t t = 0;
    for (; t + LANES <= count; t += LANES)
        for (int64_t i = 0; i < LANES; i++) lanes[i] = row[t + i] > lanes[i] ? row[t + i] : lanes[i];
    for (; t < count; t++) most = row[t] > most ? row[t] : most;
    for (int64_t i = 0; i < LANES; i++) most = lanes[i] > most ? lanes[i] : most;
    return most;
}

/* Scores to weights relative to the largest, in place. */
static void weigh(const Args *a, float *restrict row, int64_t count, float *top, float *total) {
    const float cap = a->softcap;
    if (cap > 0)
        for (int64_t t = 0; t < count; t++) row[t] = cap * tanhf(row[t] / cap);
    float most = largest(row, count), sum = 0;
    for (int64_t t = 0; t < count; t++) {
        row[t] = exp_neg(row[t] - most);
        sum += row[t];
    }
    *top = most, *total = sum;
}

static void attend_slice(const Args *a, const Slice *slice, int64_t head, Scratch x, float *partial, int64_t stride) {
    const int64_t KV = a->kv, G = a->heads / KV, D = padded(a->dim), DV = padded(a->value_dim);
    const int64_t b = slice->request, from = slice->from, to = slice->to;
    int64_t row, count, apart;
    if (to == a->lengths[b]) write_row(a, b, head, x.scores);
    for (int64_t g = 0; g < G; g++) {
        widen(a->given, a->q, (b * a->heads + head * G + g) * a->dim, x.query + g * D, a->dim);
        for (int64_t d = 0; d < D; d++) x.query[g * D + d] *= a->scale;
    }
    for (int64_t t = from; t < to; t += count) {
        count = tile_at(a, b, t, to, &row);
        const float *keys = rows_of(a->kept, a->keys, row * KV + head, KV, count, a->dim, D, x.keys, &apart);
        if (a->key_scales) read_scales(a->key_scales + row * KV + head, KV, count, x.scales);
        for (int64_t g = 0; g < G; g++) {
            float *scores = x.scores + g * SLICE + t - from;
            dot_rows(x.query + g * D, keys, apart, count, scores, D);
            if (a->key_scales) multiply(scores, x.scales, count);
        }
    }
    for (int64_t g = 0; g < G; g++) {
        float *own = partial + g * stride;
        weigh(a, x.scores + g * SLICE, to - from, own, own + 1);
        memset(own + 2, 0, DV * sizeof(float));
    }
    for (int64_t t = from; t < to; t += count) {
        count = tile_at(a, b, t, to, &row);
        const float *values = rows_of(a->kept, a->values, row * KV + head, KV, count, a->value_dim, DV, x.values, &apart);
        if (a->value_scales) read_scales(a->value_scales + row * KV + head, KV, count, x.scales);
        for (int64_t g = 0; g < G; g++) {
            float *weights = x.scores + g * SLICE + t - from;
            if (a->value_scales) multiply(weights, x.scales, count);
            add_rows(weights, values, apart, count, partial + g * stride + 2, DV);
        }
    }
}

/* Puts the slices of one query head together, in the first one's place. */
static void join(const Args *a, float *first, int64_t slices, int64_t apart, int64_t request, int64_t head) {
    float top = a->sinks ? a->sinks[head] : first[0], total = 0;
    for (int64_t s = 0; s < slices; s++) top = first[s * apart] > top ? first[s * apart] : top;
    for (int64_t s = 0; s < slices; s++) {
        const float *own = first + s * apart, share = exp_neg(own[0] - top);
        total += share * own[1];
        for (int64_t d = 0; d < a->value_dim; d++) first[2 + d] = (s ? first[2 + d] : 0) + share * own[2 + d];
    }
    if (a->sinks) total += exp_neg(a->sinks[head] - top);
    const float share = 1 / total;
    for (int64_t d = 0; d < a->value_dim; d++) first[2 + d] *= share;
    narrow(a->given, first + 2, a->out, (request * a->heads + head) * a->value_dim, a->value_dim);
}

static void run_task(const Args *a, const Work *work, Scratch x, int64_t task) {
    const int64_t KV = a->kv, G = a->heads / KV, index = task / KV, head = task % KV;
    const Slice *slice = work->slices + index;
    const int64_t b = slice->request, first = work->firsts[b], slices = work->firsts[b + 1] - first;
    attend_slice(a, slice, head, x, work->partials + (index * a->heads + head * G) * work->stride, work->stride);
    if (__atomic_sub_fetch(work->pending + b * KV + head, 1, __ATOMIC_ACQ_REL)) return;
    for (int64_t g = 0; g < G; g++) {
        float *partial = work->partials + (first * a->heads + head * G + g) * work->stride;
        join(a, partial, slices, a->heads * work->stride, b, head * G + g);
    }
}

/* The first token that is seen. */
static inline int64_t begin(const Args *a, int64_t b) {
    return a->window > 0 && a->lengths[b] > a->window ? a->lengths[b] - a->window : 0;
}

static int64_t count_slices(const Args *a) {
    int64_t count = 0;
    for (int64_t b = 0; b < a->batch; b++) count += (a->lengths[b] - begin(a, b) + SLICE - 1) / SLICE;
    return count;
}

static void cut(const Args *a, Work *work) {
    int64_t count = 0;
    for (int64_t b = 0; b < a->batch; b++) {
        work->firsts[b] = count;
        for (int64_t from = begin(a, b); from < a->lengths[b]; from += SLICE)
            work->slices[count++] = (Slice){b, from, least(from + SLICE, a->lengths[b])};
        for (int64_t h = 0; h < a->kv; h++) work->pending[b * a->kv + h] = (int32_t)(count - work->firsts[b]);
    }
    work->firsts[a->batch] = count;
}

static int run_all(const Args *a, const Work *work, int64_t tasks) {
    const int64_t G = a->heads / a->kv, D = padded(a->dim), DV = padded(a->value_dim);
    const int64_t row = D > DV ? D : DV, scores = G * SLICE > row ? G * SLICE : row;
    int failed = 0;
#pragma omp parallel num_threads(a->threads) if (a->threads > 1)
    {
        float *memory = calloc(G * D + scores + TILE * (1 + D + DV), sizeof(float));
        if (!memory) failed = 1;
        float *tiles = memory + G * D + scores;
        const Scratch x = {memory, memory + G * D, tiles, tiles + TILE, tiles + TILE * (1 + D)};
#pragma omp for schedule(static)
        for (int64_t task = 0; task < tasks; task++)
            if (memory) run_task(a, work, x, task);
        free(memory);
    }
    return failed;
}

int paged_decode(const Args *a) {
    const int64_t count = count_slices(a);
    Work work = {.stride = padded(a->value_dim) + 2};
    work.slices = malloc(count * sizeof(Slice));
    work.firsts = malloc((a->batch + 1) * sizeof(int64_t));
    work.pending = malloc(a->batch * a->kv * sizeof(int32_t));
    work.partials = malloc(count * a->heads * work.stride * sizeof(float));
    int failed = !work.slices || !work.firsts || !work.pending || !work.partials;
    if (!failed) {
        cut(a, &work);
        failed = run_all(a, &work, count * a->kv);
    }
    free(work.slices), free(work.firsts), free(work.pending), free(work.partials);
    return failed;
}
