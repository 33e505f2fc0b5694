/* Attention of one token over its request's pages, and writing of its key and value.
 *
 * A token's past is divided into slices of a fixed length. For a key head and the query heads that share it, each slice
 * yields a partial result, and the partial results are merged in order. So all arithmetic depends only on the token and
 * its past, for any distribution of the slices over threads.
 *
 *   keys   [blocks, size, KV, D]     values [blocks, size, KV, DV]   of the type `kept`
 *   key_scales, value_scales [blocks, size, KV] for types with scales, else NULL
 *   q      [B, H, D]   k [B, KV, D]  v [B, KV, DV]  out [B, H, DV]   of the type `given`; k and v are NULL if written already
 *   Numbers of q are also of the type `asked`.
 *   tables [requests, pages]   owners [B] the request of each token, NULL for one request a token
 *   lengths [B] (including the new token)  slots [B]  sinks [H] float or NULL
 *   lse    [B, H] or NULL: log-sum-exp of each head, for the backward pass
 *
 * Pages of one row each permit a past at any positions; consecutive rows are read together.
 */
#ifndef RONDO_PAST_H
#define RONDO_PAST_H
#include <stdlib.h>

#include "gemm/pairs.h"
#ifdef __aarch64__
#include <arm_neon.h>
#endif

typedef struct {
    void *keys, *values;
    float *key_scales, *value_scales;
    const void *q, *k, *v;
    void *out;
    const int64_t *tables, *owners, *lengths, *slots;
    const float *sinks;
    float *lse;
    int64_t kept, given, asked, batch, heads, kv, dim, value_dim, size, pages, window, threads;
    float scale, softcap;
} Attention;

enum { SLICE = 256, TILE = 32, LINE = 16, MANY = 64, BITE = 8, SHORT_PAST = 1 << 14 };

/* Part of a request's past: tokens `from` to `to`. */
typedef struct {
    int64_t request, from, to;
} Slice;

/* Scratch of one thread: the scaled query, a slice's scores, and a tile's scales and rows as floats. Padding of queries
 * and rows is 0. */
typedef struct {
    float *query, *scores, *scales, *keys, *values;
} Scratch;

/* A wave is the longest vector of this CPU. BESIDE is the number of queries multiplied with a row at once: as many as
 * have registers for their sums. PIN holds a wave in a register: compilers would load it again for each use. */
#if defined __AVX512F__
enum { WAVE = 16, BESIDE = 4 };
#define PIN(x) __asm__("" : "+v"(x))
#define MULTIPLIED(a, b, c) _mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c))
#define LARGER(a, b) _mm512_max_ps((__m512)(a), (__m512)(b))
#elif defined __AVX__ && defined __FMA__
enum { WAVE = 8, BESIDE = 2 };
#define PIN(x) __asm__("" : "+x"(x))
#define MULTIPLIED(a, b, c) _mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c))
#define LARGER(a, b) _mm256_max_ps((__m256)(a), (__m256)(b))
#elif defined __aarch64__
enum { WAVE = 4, BESIDE = 4 };
#define PIN(x) __asm__("" : "+w"(x))
#define MULTIPLIED(a, b, c) vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b))
#define LARGER(a, b) vmaxq_f32((float32x4_t)(a), (float32x4_t)(b))
#else
enum { WAVE = 4, BESIDE = 2 };
#define PIN(x) ((void)0)
#define MULTIPLIED(a, b, c) ((c) + (a) * (b))
#define LARGER(a, b) (((WaveBits)((a) > (b)) & (WaveBits)(a)) | (~(WaveBits)((a) > (b)) & (WaveBits)(b)))
#endif
typedef float Wave __attribute__((vector_size(4 * WAVE), aligned(4), may_alias));
typedef uint32_t WaveBits __attribute__((vector_size(4 * WAVE)));

static inline int64_t in_waves(int64_t dim) { return (dim + WAVE - 1) / WAVE * WAVE; }

/* Whether queries are multiplied with keys in place by dot products of bf16: two numbers have the size of a float. */
static inline int in_pairs(const Attention *a) {
#if defined HAS_DOTS && defined __AVX512F__
    return a->asked == BF16 && a->kept == BF16 && a->dim % (2 * WAVE) == 0;
#else
    return 0 * (a->asked == BF16);
#endif
}

/* Floats of a query, and of a key in a tile. */
static inline int64_t query_size(const Attention *a) { return in_pairs(a) ? a->dim / 2 : in_waves(a->dim); }

/* c + a b. */
ALWAYS_INLINE Wave fused_wave(Wave a, Wave b, Wave c) { return (Wave)MULTIPLIED(a, b, c); }

ALWAYS_INLINE Wave alike(float x) { return x - (Wave){0}; }

ALWAYS_INLINE Wave wave_at(const float *x) { return *(const Wave *)x; }

/* The last steps of a sum over lanes. */
ALWAYS_INLINE Half folded(Wave x) {
    union { Wave whole; Half parts[WAVE / HALF]; } u = {x};
#if defined __AVX512F__
    return (u.parts[0] + u.parts[2]) + (u.parts[1] + u.parts[3]);
#elif defined __AVX__ && defined __FMA__
    return u.parts[0] + u.parts[1];
#else
    return u.whole;
#endif
}

/* For each query the sums over lanes of its four sums, as one vector. */
ALWAYS_INLINE void sum_lanes(Wave (*of)[4], Half *all, const int M) {
#if defined __AVX512F__
    if (M == 4) {
        __m512 part[4];
#pragma GCC unroll 4
        for (int m = 0; m < 4; m++) {
            const __m512 a = (__m512)of[m][0], b = (__m512)of[m][1], c = (__m512)of[m][2], d = (__m512)of[m][3];
            const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
            const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
            part[m] = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
        }
        const __m512 low = _mm512_add_ps(_mm512_unpacklo_ps(part[0], part[1]), _mm512_unpackhi_ps(part[0], part[1]));
        const __m512 high = _mm512_add_ps(_mm512_unpacklo_ps(part[2], part[3]), _mm512_unpackhi_ps(part[2], part[3]));
        const __m512 turned = _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xee));
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        const __m512 rows = _mm512_permutexvar_ps(order, turned);
        all[0] = (Half)_mm512_castps512_ps128(rows), all[1] = (Half)_mm512_extractf32x4_ps(rows, 1);
        all[2] = (Half)_mm512_extractf32x4_ps(rows, 2), all[3] = (Half)_mm512_extractf32x4_ps(rows, 3);
        return;
    }
#endif
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) all[m] = sums(folded(of[m][0]), folded(of[m][1]), folded(of[m][2]), folded(of[m][3]));
}

ALWAYS_INLINE Wave meet_wave(const int pairs, Wave q, Wave k, Wave sum) {
#if defined HAS_DOTS && defined __AVX512F__
    if (pairs) return (Wave)DOT_PAIRS(sum, q, k);
#endif
    (void)pairs;
    return fused_wave(q, k, sum);
}

/* Products of M queries with rows `apart` numbers from one another, four rows at a time so that lane sums are shared.
 * The last row stands in for missing ones, so that a row's product does not depend on the others. */
ALWAYS_INLINE void products(const int pairs, const float *query, const float *rows, int64_t apart, int64_t count, float *const *out,
                            const int64_t D, const int M) {
    for (int64_t t = 0; t < count; t += 4) {
        const int64_t last = count - 1 - t;
        const float *a = rows + t * apart, *b = a + least(1, last) * apart, *c = a + least(2, last) * apart, *d = a + least(3, last) * apart;
        Wave sums_of[BESIDE][4] = {{{0}}};
        for (int64_t i = 0; i < D; i += WAVE) {
            Wave ka = wave_at(a + i), kb = wave_at(b + i), kc = wave_at(c + i), kd = wave_at(d + i);
            PIN(ka);
            PIN(kb);
            PIN(kc);
            PIN(kd);
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) {
                Wave q = wave_at(query + m * D + i);
                PIN(q);
                sums_of[m][0] = meet_wave(pairs, q, ka, sums_of[m][0]);
                sums_of[m][1] = meet_wave(pairs, q, kb, sums_of[m][1]);
                sums_of[m][2] = meet_wave(pairs, q, kc, sums_of[m][2]);
                sums_of[m][3] = meet_wave(pairs, q, kd, sums_of[m][3]);
            }
        }
        Half all[BESIDE];
        sum_lanes(sums_of, all, M);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
            if (last >= 3) memcpy(out[m] + t, all + m, sizeof(Half));
            else memcpy(out[m] + t, all + m, (last + 1) * sizeof(float));
        }
    }
}

ALWAYS_INLINE void dot(const float *query, const float *rows, int64_t apart, int64_t count, float *const *out, const int64_t D,
                       const int M) {
    products(0, query, rows, apart, count, out, D, M);
}

ALWAYS_INLINE void dot_words(const float *query, const float *rows, int64_t apart, int64_t count, float *const *out, const int64_t D,
                             const int M) {
    products(1, query, rows, apart, count, out, D, M);
}

/* sum [M, D] += weights [M, count] @ rows [count, D], each result one chain over rows. */
ALWAYS_INLINE void add(float *const *weights, const float *rows, int64_t apart, int64_t count, float *const *sum,
                       const int64_t D, const int M) {
    int64_t i = 0;
    for (; i + 4 * WAVE <= D; i += 4 * WAVE) {
        Wave s[BESIDE][4];
#pragma GCC unroll 4
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
            for (int n = 0; n < 4; n++) s[m][n] = wave_at(sum[m] + i + n * WAVE);
        for (int64_t t = 0; t < count; t++) {
            const float *row = rows + t * apart + i;
            Wave va = wave_at(row), vb = wave_at(row + WAVE), vc = wave_at(row + 2 * WAVE), vd = wave_at(row + 3 * WAVE);
            PIN(va);
            PIN(vb);
            PIN(vc);
            PIN(vd);
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) {
                Wave weight = alike(weights[m][t]);
                PIN(weight);
                s[m][0] = fused_wave(weight, va, s[m][0]);
                s[m][1] = fused_wave(weight, vb, s[m][1]);
                s[m][2] = fused_wave(weight, vc, s[m][2]);
                s[m][3] = fused_wave(weight, vd, s[m][3]);
            }
        }
#pragma GCC unroll 4
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
            for (int n = 0; n < 4; n++) *(Wave *)(sum[m] + i + n * WAVE) = s[m][n];
    }
    for (; i < D; i += WAVE) {
        Wave s[BESIDE];
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) s[m] = wave_at(sum[m] + i);
        for (int64_t t = 0; t < count; t++)
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) s[m] = fused_wave(alike(weights[m][t]), wave_at(rows + t * apart + i), s[m]);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) *(Wave *)(sum[m] + i) = s[m];
    }
}

/* Loops over sizes known to the compiler become a few vector instructions. */
#define FOR_SIZE(NAME, X, M)                                                                                           \
    static void NAME##_##M(X x, const float *rows, int64_t apart, int64_t count, float *const *out, int64_t D) {       \
        if (D == 64) NAME(x, rows, apart, count, out, 64, M);                                                          \
        else if (D == 128) NAME(x, rows, apart, count, out, 128, M);                                                   \
        else NAME(x, rows, apart, count, out, D, M);                                                                   \
    }
#define FOR_COUNT(NAME, X)                                                                                             \
    FOR_SIZE(NAME, X, 1)                                                                                               \
    FOR_SIZE(NAME, X, 2)                                                                                               \
    FOR_SIZE(NAME, X, BESIDE)                                                                                          \
    static inline void NAME##_rows(X x, const float *rows, int64_t apart, int64_t count, float *const *out, int64_t D, int64_t M) { \
        if (M == 1) NAME##_1(x, rows, apart, count, out, D);                                                           \
        else if (M == 2) NAME##_2(x, rows, apart, count, out, D);                                                      \
        else NAME##_BESIDE(x, rows, apart, count, out, D);                                                             \
    }
FOR_COUNT(dot, const float *)
FOR_COUNT(dot_words, const float *)
FOR_COUNT(add, float *const *)

/* Number of the remaining queries to process together. */
static inline int64_t beside(int64_t left) { return left >= BESIDE ? BESIDE : left >= 2 ? 2 : 1; }

/* The tokens from `t`, at most to `to`, within one page and one tile; `row` is their first row. */
static inline int64_t tile_at(const Attention *a, int64_t request, int64_t t, int64_t to, int64_t *row) {
    const int64_t page = t / a->size;
    const int64_t *table = a->tables + (a->owners ? a->owners[request] : request) * a->pages;
    *row = table[page] * a->size + t % a->size;
    if (a->size == 1) {
        const int64_t end = least(to - t, TILE);
        int64_t count = 1;
        while (count < end && table[t + count] == *row + count) count++;
        return count;
    }
    return least(least(to, (page + 1) * a->size) - t, TILE);
}

static inline void read_scales(const float *from, int64_t step, int64_t count, float *restrict to) {
    for (int64_t i = 0; i < count; i++) to[i] = from[i * step];
}

static inline void multiply(float *restrict row, const float *restrict by, int64_t count) {
    for (int64_t i = 0; i < count; i++) row[i] *= by[i];
}

static void write_row(const Attention *a, int64_t request, int64_t head, float *row) {
    const int64_t from = request * a->kv + head, to = a->slots[request] * a->kv + head;
    widen(a->given, a->k, from * a->dim, row, a->dim);
    keep(a->kept, row, a->keys, a->key_scales, to, a->dim);
    widen(a->given, a->v, from * a->value_dim, row, a->value_dim);
    keep(a->kept, row, a->values, a->value_scales, to, a->value_dim);
}

/* Partial result of one slice for a query: the weighted sum of the values, the largest score, and the sum of the
 * weights, which are relative to it. */
static inline int64_t part_size(const Attention *a) { return in_waves(a->value_dim) + LINE; }

ALWAYS_INLINE Wave larger(Wave a, Wave b) { return (Wave)LARGER(a, b); }

/* Like `exp_neg`. Adding a number so large that its last bit is 1 rounds the other operand. */
ALWAYS_INLINE Wave exp_wave(Wave x) {
    const Wave rounder = alike(0x1.8p23f);
    x = larger(alike(-87.0f), x);
    const Wave shifted = fused_wave(x, alike(1.44269504088896341f), rounder), n = shifted - rounder;
    const Wave r = fused_wave(n, alike(2.12194440e-4f), fused_wave(n, alike(-0.693359375f), x));
    Wave p = fused_wave(r, alike(1.9875691500e-4f), alike(1.3981999507e-3f));
    p = fused_wave(p, r, alike(8.3334519073e-3f));
    p = fused_wave(p, r, alike(4.1665795894e-2f));
    p = fused_wave(p, r, alike(1.6666665459e-1f));
    p = fused_wave(p, r, alike(5.0000001201e-1f));
    p = fused_wave(p, r * r, r) + 1.0f;
    return p * (Wave)(((WaveBits)shifted << 23) + (127u << 23));
}

/* Converts scores to weights, in place, for a new partial result. The last wave of them may be padded. */
static void weigh(const Attention *a, float *row, int64_t count, float *part) {
    const int64_t DV = in_waves(a->value_dim), end = in_waves(count);
    const float cap = a->softcap;
    if (cap > 0)
        for (int64_t t = 0; t < count; t++) row[t] = cap * tanhf(row[t] / cap);
    for (int64_t t = count; t < end; t++) row[t] = row[0];
    Wave most = wave_at(row), sum = {0};
    for (int64_t t = WAVE; t < end; t += WAVE) most = larger(wave_at(row + t), most);
    float highest = most[0];
    for (int64_t i = 1; i < WAVE; i++) highest = most[i] > highest ? most[i] : highest;
    for (int64_t t = 0; t < end; t += WAVE) *(Wave *)(row + t) = exp_wave(wave_at(row + t) - highest);
    for (int64_t t = count; t < end; t++) row[t] = 0;
    for (int64_t t = 0; t < end; t += WAVE) sum += wave_at(row + t);
    const Half four = folded(sum);
    memset(part, 0, DV * sizeof(float));
    part[DV] = highest, part[DV + 1] = (four[0] + four[1]) + (four[2] + four[3]);
}

/* Bytes of one row of a head in the cache. */
static inline int64_t row_bytes(const Attention *a, int64_t dim) {
    return dim * (a->kept == F32 ? 4 : a->kept == BF16 || a->kept == F16 ? 2 : 1);
}

/* Prefetches the rows of a head within one tile. They are short and far apart, so hardware prefetchers do not predict
 * them. */
static inline void fetch(const Attention *a, const void *pages, int64_t bytes, int64_t row, int64_t head, int64_t count) {
    const char *at = (const char *)pages + (row * a->kv + head) * bytes;
    for (int64_t i = 0; i < count; i++, at += a->kv * bytes)
        for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(at + byte, 0, 2);
}

/* Whether the previous token has the same past. */
static inline int is_near(const Attention *a, int64_t b) { return a->owners && b > 0 && a->owners[b] == a->owners[b - 1]; }

/* The queries of a token and key head; scaled, unless they are in pairs, whose scores are scaled instead. */
static void read_queries(const Attention *a, int64_t b, int64_t head, float *query) {
    const int64_t G = a->heads / a->kv, D = query_size(a);
    for (int64_t g = 0; g < G; g++, query += D) {
        const int64_t from = (b * a->heads + head * G + g) * a->dim;
        if (in_pairs(a)) {
            if (a->given == BF16) memcpy(query, (const uint16_t *)a->q + from, D * sizeof(float));
            else narrow(BF16, (const float *)a->q + from, query, 0, a->dim);
            continue;
        }
        widen(a->given, a->q, from, query, a->dim);
        for (int64_t d = 0; d < a->dim; d++) query[d] *= a->scale;
        for (int64_t d = a->dim; d < D; d++) query[d] = 0;
    }
}

/* Rows of a head within one tile, as floats, with zero padding. */
static inline const float *read_rows(const Attention *a, const void *pages, int64_t row, int64_t head, int64_t count, int64_t dim,
                                     float *to, int64_t *apart) {
    const int64_t D = in_waves(dim);
    for (int64_t i = 0; i < count && D > dim; i++) memset(to + i * D + dim, 0, (D - dim) * sizeof(float));
    return rows_of(a->kept, pages, row * a->kv + head, a->kv, count, dim, D, to, apart);
}

/* Like `read_rows`, for keys: in place, if they can be multiplied there. */
static inline const float *read_keys(const Attention *a, int64_t row, int64_t head, int64_t count, float *to, int64_t *apart) {
    if (!in_pairs(a)) return read_rows(a, a->keys, row, head, count, a->dim, to, apart);
    *apart = a->kv * a->dim / 2;
    return (const float *)((const uint16_t *)a->keys + (row * a->kv + head) * a->dim);
}

/* Scores of M queries. */
static inline void score(const Attention *a, const float *query, const float *rows, int64_t apart, int64_t count, float *const *out, int64_t M) {
    const int64_t D = query_size(a);
    if (!in_pairs(a)) {
        dot_rows(query, rows, apart, count, out, D, M);
        return;
    }
    dot_words_rows(query, rows, apart, count, out, D, M);
    for (int64_t m = 0; m < M; m++)
        for (int64_t t = 0; t < count; t++) out[m][t] *= a->scale;
}

/* Like `tile_at`, for few tokens: a prefetch should not exceed the memory bandwidth during its use. */
static inline int64_t bite_at(const Attention *a, int64_t request, int64_t t, int64_t to, int64_t *row) {
    return tile_at(a, request, t, least(to, t + BITE), row);
}
#endif
