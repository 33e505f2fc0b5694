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
#ifndef RONDO_ATTENTION_H
#define RONDO_ATTENTION_H
#include <stdlib.h>

#include "pairs.h"
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

enum { SLICE = 256, TILE = 32, LINE = 16, MANY = 64, BITE = 8 };

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

/* While scores are made, values are asked for; while those are added up, the keys of `next`, whose head is `next_head`. */
static void attend_slice(const Attention *a, const Slice *slice, int64_t head, const Slice *next, int64_t next_head, Scratch x,
                         float *partial) {
    const int64_t KV = a->kv, G = a->heads / KV, D = query_size(a), DV = in_waves(a->value_dim), stride = part_size(a);
    const int64_t b = slice->request, from = slice->from, to = slice->to;
    const int64_t end = next && !is_near(a, next->request) ? next->to : 0, value_bytes = is_near(a, b) ? 0 : row_bytes(a, a->value_dim);
    int64_t row, count, apart, ahead = next ? next->from : 0;
    float *scores[BESIDE], *sums[BESIDE];
    if (a->k && to == a->lengths[b]) write_row(a, b, head, x.scores);
    read_queries(a, b, head, x.query);
    for (int64_t t = from; t < to; t += count) {
        count = bite_at(a, b, t, to, &row);
        if (value_bytes) fetch(a, a->values, value_bytes, row, head, count);
        const float *keys = read_keys(a, row, head, count, x.keys, &apart);
        if (a->key_scales) read_scales(a->key_scales + row * KV + head, KV, count, x.scales);
        for (int64_t g = 0, M; g < G; g += M) {
            M = beside(G - g);
            for (int64_t m = 0; m < M; m++) scores[m] = x.scores + (g + m) * SLICE + t - from;
            score(a, x.query + g * D, keys, apart, count, scores, M);
            for (int64_t m = 0; a->key_scales && m < M; m++) multiply(scores[m], x.scales, count);
        }
    }
    for (int64_t g = 0; g < G; g++) weigh(a, x.scores + g * SLICE, to - from, partial + g * stride);
    for (int64_t t = from; t < to; t += count) {
        if (ahead < end) {
            count = bite_at(a, next->request, ahead, end, &row);
            fetch(a, a->keys, row_bytes(a, a->dim), row, next_head, count);
            ahead += count;
        }
        count = bite_at(a, b, t, to, &row);
        const float *values = read_rows(a, a->values, row, head, count, a->value_dim, x.values, &apart);
        if (a->value_scales) read_scales(a->value_scales + row * KV + head, KV, count, x.scales);
        for (int64_t g = 0, M; g < G; g += M) {
            M = beside(G - g);
            for (int64_t m = 0; m < M; m++) {
                scores[m] = x.scores + (g + m) * SLICE + t - from, sums[m] = partial + (g + m) * stride;
                if (a->value_scales) multiply(scores[m], x.scales, count);
            }
            add_rows(scores, values, apart, count, sums, DV, M);
        }
    }
}

/* Puts the slices of one query head together, in the first one's place. */
static void join(const Attention *a, float *first, int64_t slices, int64_t apart, int64_t request, int64_t head) {
    const int64_t DV = in_waves(a->value_dim);
    float top = a->sinks ? a->sinks[head] : first[DV], total = 0;
    for (int64_t s = 0; s < slices; s++) top = first[s * apart + DV] > top ? first[s * apart + DV] : top;
    for (int64_t s = 0; s < slices; s++) {
        const float *own = first + s * apart, share = exp_neg(own[DV] - top);
        total += share * own[DV + 1];
        for (int64_t d = 0; d < DV; d++) first[d] = (s ? first[d] : 0) + share * own[d];
    }
    if (a->sinks) total += exp_neg(a->sinks[head] - top);
    if (a->lse) a->lse[request * a->heads + head] = top + logf(total);
    const float share = 1 / total;
    for (int64_t d = 0; d < DV; d++) first[d] *= share;
    narrow(a->given, first, a->out, (request * a->heads + head) * a->value_dim, a->value_dim);
}

/* The first token that is seen. */
static inline int64_t begin(const Attention *a, int64_t b) {
    return a->window > 0 && a->lengths[b] > a->window ? a->lengths[b] - a->window : 0;
}

/* The slice of a request's past that begins at `from`. */
static inline Slice slice_at(const Attention *a, int64_t b, int64_t from) { return (Slice){b, from, least(from + SLICE, a->lengths[b])}; }

/* One token and key head, slice by slice; `partials` is of `partials_size`. After the last of the token's heads comes the
 * token after it, if that is below `tokens`. */
static inline void attend_token(const Attention *a, int64_t b, int64_t head, int64_t tokens, Scratch x, float *partials) {
    const int64_t G = a->heads / a->kv, stride = part_size(a), length = a->lengths[b];
    const int64_t follows = head + 1 < a->kv ? b : b + 1;
    int64_t slices = 0;
    for (int64_t from = begin(a, b); from < length; from += SLICE) {
        const int within = from + SLICE < length, more = within || follows < tokens;
        const Slice slice = slice_at(a, b, from), next = within ? slice_at(a, b, from + SLICE) : more ? slice_at(a, follows, begin(a, follows)) : slice;
        attend_slice(a, &slice, head, more ? &next : NULL, within ? head : (head + 1) % a->kv, x, partials + slices++ * G * stride);
    }
    for (int64_t g = 0; g < G; g++) join(a, partials + g * stride, slices, G * stride, b, head * G + g);
}

/* How many neighbours go together at most: so that their queries and scores stay near. */
static inline int64_t neighbours(const Attention *a) { return most(4, MANY * a->kv / a->heads); }

/* How many tokens from `b` on, below `tokens`, have one past and go together. */
static inline int64_t run_at(const Attention *a, int64_t b, int64_t tokens) {
    const int64_t end = least(tokens, b + neighbours(a));
    int64_t last = b + 1;
    while (last < end && is_near(a, last)) last++;
    return last - b;
}

/* Rows from token `t` to `end` of one past, at most a tile, side by side as floats; and their scales, where they have them. */
static void read_tile(const Attention *a, const void *pages, const float *scales, int64_t b, int64_t t, int64_t end, int64_t head,
                      int64_t dim, float *to, float *scales_to) {
    int64_t row, count, apart;
    for (; t < end; t += count, to += count * in_waves(dim), scales_to += count) {
        count = tile_at(a, b, t, end, &row);
        const float *rows = read_rows(a, pages, row, head, count, dim, to, &apart);
        for (int64_t i = 0; i < count && rows != to; i++) memcpy(to + i * dim, rows + i * apart, dim * sizeof(float));
        if (scales) read_scales(scales + row * a->kv + head, a->kv, count, scales_to);
    }
}

/* The same of keys that are met as they are. */
static void read_pairs(const Attention *a, int64_t b, int64_t t, int64_t end, int64_t head, float *to) {
    int64_t row, count, apart;
    const int64_t D = query_size(a);
    for (; t < end; t += count) {
        count = tile_at(a, b, t, end, &row);
        const float *rows = read_keys(a, row, head, count, to, &apart);
        for (int64_t i = 0; i < count; i++, to += D) memcpy(to, rows + i * apart, D * sizeof(float));
    }
}

/* One slice of what a query sees; `scores[t]` is its score of token t, then its weight. */
typedef struct {
    int64_t from, to;
    float *scores, *part;
} Query;

/* What M queries see of the tokens from `t` to `end`: each, and all of them. */
typedef struct {
    int64_t from[BESIDE], to[BESIDE], first, last;
} Seen;

ALWAYS_INLINE void see(const Query *queries, int64_t M, int64_t t, int64_t end, Seen *s) {
    s->first = t, s->last = end;
    for (int64_t m = 0; m < M; m++) {
        s->from[m] = most(t, queries[m].from), s->to[m] = most(s->from[m], least(end, queries[m].to));
        s->first = most(s->first, s->from[m]), s->last = least(s->last, s->to[m]);
    }
    if (s->first > s->last) s->first = s->last = end;
}

/* The tile that is read next: asked for bit by bit, while the one before is used. */
typedef struct {
    const void *pages;
    int64_t bytes, b, from, to;
} Ahead;

static inline void ask_for(const Attention *a, Ahead *next, int64_t head, int64_t share) {
    if (next->from >= next->to) return;
    int64_t row, count = tile_at(a, next->b, next->from, least(next->to, next->from + share), &row);
    fetch(a, next->pages, next->bytes, row, head, count);
    next->from += count;
}

/* Of a tile of rows from token `t` to `end`: the products of all queries with those that they see, or the sums by their
 * weights. A row is read once for as many queries as see it together. */
#define EACH_QUERIES                                                                                                   \
    for (int64_t r = 0, M; r < count; r += M) {                                                                        \
        const Query *own = queries + r;                                                                                \
        float *scores[BESIDE];                                                                                         \
        Seen s;                                                                                                        \
        see(own, M = beside(count - r), t, end, &s);                                                                   \
        ask_for(a, next, head, share);                                                                                 \
        for (int64_t m = 0; m < M; m++) scores[m] = own[m].scores + s.first;

static void score_tile(const Attention *a, const Query *queries, int64_t count, const float *query, const float *keys, const float *scales,
                       int64_t t, int64_t end, int64_t head, Ahead *next) {
    const int64_t D = query_size(a), share = ((next->to - next->from) * BESIDE + count - 1) / count;
    EACH_QUERIES
        score(a, query + r * D, keys + (s.first - t) * D, D, s.last - s.first, scores, M);
        for (int64_t m = 0; m < M; m++) {
            const int64_t before = least(s.first, s.to[m]), after = most(s.from[m], s.last);
            float *first = own[m].scores + s.from[m], *last = own[m].scores + after;
            if (s.from[m] < before) score(a, query + (r + m) * D, keys + (s.from[m] - t) * D, D, before - s.from[m], &first, 1);
            if (after < s.to[m]) score(a, query + (r + m) * D, keys + (after - t) * D, D, s.to[m] - after, &last, 1);
            if (scales) multiply(first, scales + s.from[m] - t, s.to[m] - s.from[m]);
        }
    }
}

static void add_tile(const Attention *a, const Query *queries, int64_t count, const float *values, const float *scales, int64_t t,
                     int64_t end, int64_t head, Ahead *next) {
    const int64_t DV = in_waves(a->value_dim), share = ((next->to - next->from) * BESIDE + count - 1) / count;
    EACH_QUERIES
        float *sums[BESIDE];
        for (int64_t m = 0; m < M; m++) {
            const int64_t before = least(s.first, s.to[m]);
            float *first = own[m].scores + s.from[m];
            sums[m] = own[m].part;
            if (scales) multiply(first, scales + s.from[m] - t, s.to[m] - s.from[m]);
            if (s.from[m] < before) add_rows(&first, values + (s.from[m] - t) * DV, DV, before - s.from[m], sums + m, DV, 1);
        }
        if (s.first < s.last) add_rows(scores, values + (s.first - t) * DV, DV, s.last - s.first, sums, DV, M);
        for (int64_t m = 0; m < M; m++) {
            const int64_t after = most(s.from[m], s.last);
            float *last = own[m].scores + after;
            if (after < s.to[m]) add_rows(&last, values + (after - t) * DV, DV, s.to[m] - after, sums + m, DV, 1);
        }
    }
}
#undef EACH_QUERIES

/* One slice of the queries of a few tokens of one request, each where it is in the token's own past. A tile of keys is read
 * once for all of them; what a token makes of it is as in `attend_slice`, to the bit. */
static void attend_slices(const Attention *a, int64_t b, const Query *queries, int64_t n, int64_t head, Scratch x) {
    int64_t first = INT64_MAX, last = 0;
    for (int64_t r = 0; r < n; r++)
        if (queries[r].from < queries[r].to) first = least(first, queries[r].from), last = most(last, queries[r].to);
    Ahead keys = {a->keys, row_bytes(a, a->dim), b, first, first}, values = {a->values, row_bytes(a, a->value_dim), b, first, first};
    for (int64_t t = first, end; t < last; t = end) {
        end = least(t + TILE, last);
        if (in_pairs(a)) read_pairs(a, b, t, end, head, x.keys);
        else read_tile(a, a->keys, a->key_scales, b, t, end, head, a->dim, x.keys, x.scales);
        Ahead *next = end < last ? &keys : &values;
        next->from = end < last ? end : first, next->to = least(next->from + TILE, last);
        score_tile(a, queries, n, x.query, x.keys, a->key_scales ? x.scales : NULL, t, end, head, next);
    }
    for (int64_t r = 0; r < n; r++)
        if (queries[r].from < queries[r].to) weigh(a, queries[r].scores + queries[r].from, queries[r].to - queries[r].from, queries[r].part);
    for (int64_t t = first, end; t < last; t = end) {
        end = least(t + TILE, last);
        read_tile(a, a->values, a->value_scales, b, t, end, head, a->value_dim, x.values, x.scales);
        values.from = end, values.to = least(end + TILE, last);
        add_tile(a, queries, n, x.values, a->value_scales ? x.scales : NULL, t, end, head, &values);
    }
}

/* As `attend_token`, of `n` tokens of one request at once. */
static void attend_run(const Attention *a, int64_t b, int64_t n, int64_t head, Scratch x, float *partials) {
    const int64_t G = a->heads / a->kv, stride = part_size(a);
    Query queries[n * G];
    int64_t slices = 0;
    for (int64_t j = 0; j < n; j++) {
        slices = most(slices, (a->lengths[b + j] - begin(a, b + j) + SLICE - 1) / SLICE);
        read_queries(a, b + j, head, x.query + j * G * query_size(a));
    }
    for (int64_t i = 0; i < slices; i++) {
        for (int64_t r = 0; r < n * G; r++) {
            const Slice own = slice_at(a, b + r / G, begin(a, b + r / G) + i * SLICE);
            queries[r] = (Query){own.from, own.to, x.scores + r * SLICE - own.from, partials + (r * slices + i) * stride};
        }
        attend_slices(a, b, queries, n * G, head, x);
    }
    for (int64_t r = 0; r < n * G; r++) {
        const int64_t j = b + r / G, own = (a->lengths[j] - begin(a, j) + SLICE - 1) / SLICE;
        join(a, partials + r * slices * stride, own, stride, j, head * G + r % G);
    }
}

/* How many floats the parts of a run's answers have, and a thread's scratch; and where those are in `memory`, which is 0. */
static inline int64_t partials_size(const Attention *a, int64_t longest) {
    return neighbours(a) * ((longest + SLICE - 1) / SLICE) * (a->heads / a->kv) * part_size(a);
}

/* The first place from which a cache line begins. */
static inline float *at_line(float *memory) { return memory + (LINE - ((uintptr_t)memory / sizeof(float)) % LINE) % LINE; }

static inline int64_t queries(const Attention *a) { return neighbours(a) * (a->heads / a->kv); }

static inline int64_t scratch_size(const Attention *a) {
    const int64_t D = in_waves(a->dim), DV = in_waves(a->value_dim);
    return queries(a) * D + most(queries(a) * SLICE, most(D, DV)) + TILE * (1 + D + DV) + LINE;
}

static inline Scratch scratch_in(const Attention *a, float *memory) {
    const int64_t D = in_waves(a->dim), DV = in_waves(a->value_dim);
    memory = at_line(memory);
    float *scores = memory + queries(a) * D, *tiles = scores + most(queries(a) * SLICE, most(D, DV));
    return (Scratch){memory, scores, tiles, tiles + TILE, tiles + TILE * (1 + D)};
}
#endif
