/* Attention of one token over its request's pages, with the writing of its key and value.
 *
 * A token's past is cut into slices of a fixed length; each gives, for a key head and the query heads that share it, a
 * part of the answer, and the parts are put together in their order. So all arithmetic depends on the token and its past
 * alone, however the slices are shared among threads.
 *
 *   keys   [blocks, size, KV, D]     values [blocks, size, KV, DV]   of the type `kept`
 *   key_scales, value_scales [blocks, size, KV] where it has them, else NULL
 *   q      [B, H, D]   k [B, KV, D]  v [B, KV, DV]  out [B, H, DV]   of the type `given`; k and v NULL where they are written already.
 *   Numbers of q are also of the type `asked`.
 *   tables [requests, pages]   owners [B] the request of each token, NULL where each has its own
 *   lengths [B] (the new token counted)  slots [B]  sinks [H] float or NULL
 *   lse    [B, H] or NULL: the logarithm of what a head's weights were divided by, for the way back
 *
 * Pages of one row each are a past that lies anywhere; rows that follow one another are read together.
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

/* What one thread needs: the scaled query, a slice's scores, and of a tile the scales and the rows as floats. Padding of queries
 * and rows is 0. */
typedef struct {
    float *query, *scores, *scales, *keys, *values;
} Scratch;

/* A wave is the longest vector there is here. BESIDE is how many queries meet a row at once: as many as have registers for
 * their sums. PIN keeps a wave in a register: compilers would load it again for each of its uses. */
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

/* Whether queries meet keys by dot products of bf16, where they lie: two numbers are as long as a float. */
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

/* Of each query's four sums those over lanes, side by side. */
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

/* Products of M queries, side by side, with rows that are `apart` numbers from one to the next, four at a time so that sums
 * of lanes are shared; the last row stands in for missing ones, so that a row's product does not depend on the others. */
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

/* Loops over sizes that the compiler knows become a few vector instructions. */
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

/* How many of those that are left go together. */
static inline int64_t beside(int64_t left) { return left >= BESIDE ? BESIDE : left >= 2 ? 2 : 1; }

/* The tokens from `t` on, at most to `to`, that lie in one page and fill one tile; `row` is where they begin. */
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

/* What one slice of a past makes of a query: the sum of the values by their weights, the largest score, and the sum of the
 * weights, which are relative to it. */
static inline int64_t part_size(const Attention *a) { return in_waves(a->value_dim) + LINE; }

ALWAYS_INLINE Wave larger(Wave a, Wave b) { return (Wave)LARGER(a, b); }

/* As `exp_neg`. A number so large that its last bit is a 1 rounds what is added to it. */
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

/* Scores to weights, in place, for a part that begins. The last wave of them may be filled up. */
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

/* What one row of a head takes in the cache. */
static inline int64_t row_bytes(const Attention *a, int64_t dim) {
    return dim * (a->kept == F32 ? 4 : a->kept == BF16 || a->kept == F16 ? 2 : 1);
}

/* Asks for the rows of a head that lie in one tile. They are short and far apart: no CPU sees them coming. */
static inline void fetch(const Attention *a, const void *pages, int64_t bytes, int64_t row, int64_t head, int64_t count) {
    const char *at = (const char *)pages + (row * a->kv + head) * bytes;
    for (int64_t i = 0; i < count; i++, at += a->kv * bytes)
        for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(at + byte, 0, 2);
}

/* Whether the token before had the same past. */
static inline int is_near(const Attention *a, int64_t b) { return a->owners && b > 0 && a->owners[b] == a->owners[b - 1]; }

/* The queries of a token and key head; scaled, if not in pairs: their scores are, then. */
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

/* Rows of a head that lie in one tile, as floats, with padding that is 0. */
static inline const float *read_rows(const Attention *a, const void *pages, int64_t row, int64_t head, int64_t count, int64_t dim,
                                     float *to, int64_t *apart) {
    const int64_t D = in_waves(dim);
    for (int64_t i = 0; i < count && D > dim; i++) memset(to + i * D + dim, 0, (D - dim) * sizeof(float));
    return rows_of(a->kept, pages, row * a->kv + head, a->kv, count, dim, D, to, apart);
}

/* As `read_rows`, of keys: where they lie, if they can be met there. */
static inline const float *read_keys(const Attention *a, int64_t row, int64_t head, int64_t count, float *to, int64_t *apart) {
    if (!in_pairs(a)) return read_rows(a, a->keys, row, head, count, a->dim, to, apart);
    *apart = a->kv * a->dim / 2;
    return (const float *)((const uint16_t *)a->keys + (row * a->kv + head) * a->dim);
}

/* Scores of M queries beside one another. */
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

/* As `tile_at`, of few tokens: what is asked for at once should not be more than memory brings while they are used. */
static inline int64_t bite_at(const Attention *a, int64_t request, int64_t t, int64_t to, int64_t *row) {
    return tile_at(a, request, t, least(to, t + BITE), row);
}
#endif
