/* Attention of one new token a request over its pages, with the writing of its key and value.
 *
 * One task is one request and one key head: it writes the new key and value to their slot, scores the past against the
 * query heads that share the key head, and sums the values. A task's arithmetic depends on its request alone, so results
 * do not change with the batch or the number of threads.
 *
 *   keys   [blocks, size, KV, D]     values [blocks, size, KV, DV]
 *   q      [B, H, D]   k [B, KV, D]  v [B, KV, DV]  out [B, H, DV]
 *   tables [B, pages]  lengths [B] (the new token counted)  slots [B]  sinks [H] float or NULL
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    void *keys, *values;
    const void *q, *k, *v;
    void *out;
    const int64_t *tables, *lengths, *slots;
    const float *sinks;
    int64_t batch, heads, kv, dim, value_dim, size, pages, window, longest, threads;
    float scale, softcap;
} Args;

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

static inline float from_float(float x) { return x; }
static inline float to_float(float x) { return x; }

static inline float from_bf16(uint16_t x) {
    union { uint32_t i; float f; } u = {(uint32_t)x << 16};
    return u.f;
}

static inline uint16_t to_bf16(float x) {
    union { float f; uint32_t i; } u = {x};
    return (uint16_t)((u.i + 0x7fff + ((u.i >> 16) & 1)) >> 16);
}

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* One group of query heads against its past. D and DV are constants where `NAME` knows them, so that loops over them
 * become a few vector instructions. */
#define DEFINE(NAME, T, LOAD, STORE)                                                                                   \
    ALWAYS_INLINE void NAME##_task(const Args *a, int64_t b, int64_t h, float *scratch, const int64_t D,               \
                                   const int64_t DV) {                                                                 \
        const int64_t KV = a->kv, G = a->heads / KV, size = a->size, length = a->lengths[b];                           \
        const int64_t first = a->window > 0 && length > a->window ? length - a->window : 0, count = length - first;    \
        const int64_t *table = a->tables + b * a->pages;                                                               \
        T *keys = (T *)a->keys + h * D, *values = (T *)a->values + h * DV;                                             \
        memcpy(keys + a->slots[b] * KV * D, (const T *)a->k + (b * KV + h) * D, D * sizeof(T));                        \
        memcpy(values + a->slots[b] * KV * DV, (const T *)a->v + (b * KV + h) * DV, DV * sizeof(T));                   \
        float *restrict query = scratch, *restrict sum = query + G * D, *restrict scores = sum + G * DV;               \
        const T *q = (const T *)a->q + (b * a->heads + h * G) * D;                                                     \
        T *out = (T *)a->out + (b * a->heads + h * G) * DV;                                                            \
        for (int64_t i = 0; i < G * D; i++) query[i] = LOAD(q[i]) * a->scale;                                          \
        memset(sum, 0, G * DV * sizeof(float));                                                                        \
        for (int64_t page = first / size; page * size < length; page++) {                                              \
            const int64_t from = page * size > first ? page * size : first;                                            \
            const int64_t to = (page + 1) * size < length ? (page + 1) * size : length;                                \
            const T *key = keys + (table[page] * size + from - page * size) * KV * D;                                  \
            for (int64_t t = from; t < to; t++, key += KV * D)                                                         \
                for (int64_t g = 0; g < G; g++) {                                                                      \
                    float dot = 0;                                                                                     \
                    for (int64_t d = 0; d < D; d++) dot += query[g * D + d] * LOAD(key[d]);                            \
                    scores[g * count + t - first] = dot;                                                               \
                }                                                                                                      \
        }                                                                                                              \
        for (int64_t g = 0; g < G; g++) normalize(a, scores + g * count, count, h * G + g);                            \
        for (int64_t page = first / size; page * size < length; page++) {                                              \
            const int64_t from = page * size > first ? page * size : first;                                            \
            const int64_t to = (page + 1) * size < length ? (page + 1) * size : length;                                \
            const T *value = values + (table[page] * size + from - page * size) * KV * DV;                             \
            for (int64_t t = from; t < to; t++, value += KV * DV)                                                      \
                for (int64_t g = 0; g < G; g++) {                                                                      \
                    const float weight = scores[g * count + t - first];                                                \
                    for (int64_t d = 0; d < DV; d++) sum[g * DV + d] += weight * LOAD(value[d]);                       \
                }                                                                                                      \
        }                                                                                                              \
        for (int64_t i = 0; i < G * DV; i++) out[i] = STORE(sum[i]);                                                   \
    }                                                                                                                  \
                                                                                                                       \
    int NAME(const Args *a) {                                                                                          \
        const int64_t tasks = a->batch * a->kv, group = a->heads / a->kv, D = a->dim, DV = a->value_dim;               \
        const int64_t floats = group * (D + DV + a->longest);                                                          \
        int failed = 0;                                                                                                \
        _Pragma("omp parallel num_threads(a->threads) if (a->threads > 1)") {                                          \
            float *scratch = malloc(floats * sizeof(float));                                                           \
            if (!scratch) failed = 1;                                                                                  \
            _Pragma("omp for schedule(static)") for (int64_t task = 0; task < tasks; task++) {                         \
                if (!scratch) continue;                                                                                \
                const int64_t b = task / a->kv, h = task % a->kv;                                                      \
                if (D == 32 && DV == 32) NAME##_task(a, b, h, scratch, 32, 32);                                        \
                else if (D == 64 && DV == 64) NAME##_task(a, b, h, scratch, 64, 64);                                   \
                else if (D == 128 && DV == 128) NAME##_task(a, b, h, scratch, 128, 128);                               \
                else NAME##_task(a, b, h, scratch, D, DV);                                                             \
            }                                                                                                          \
            free(scratch);                                                                                             \
        }                                                                                                              \
        return failed;                                                                                                 \
    }

/* Scores to weights, in place. */
static void normalize(const Args *a, float *restrict row, int64_t count, int64_t head) {
    const float cap = a->softcap;
    if (cap > 0)
        for (int64_t t = 0; t < count; t++) row[t] = cap * tanhf(row[t] / cap);
    float top = a->sinks ? a->sinks[head] : row[0];
    for (int64_t t = 0; t < count; t++) top = row[t] > top ? row[t] : top;
    float total = 0;
    for (int64_t t = 0; t < count; t++) {
        row[t] = exp_neg(row[t] - top);
        total += row[t];
    }
    if (a->sinks) total += exp_neg(a->sinks[head] - top);
    const float share = 1 / total;
    for (int64_t t = 0; t < count; t++) row[t] *= share;
}

DEFINE(paged_decode_f32, float, from_float, to_float)
DEFINE(paged_decode_bf16, uint16_t, from_bf16, to_bf16)
