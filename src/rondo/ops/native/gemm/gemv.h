/* The product of so few rows that they would leave lanes empty: here lanes are columns. Rows of w are transposed in
 * registers, and each number of x is multiplied with a vector of columns. A result is the same chain over K as in
 * `product.h`, bitwise equal. Weights are read at the speed of memory, where the cost of packed rows of x would be the
 * same for one as for all. */
#ifndef RONDO_SLIM_H
#define RONDO_SLIM_H
#include "gemm/transpose.h"

enum { KC = 256 };

#if defined __AVX512F__
enum { SLIM = 16, COLUMNS_WIDE = 16 };
typedef __m512 Columns;
#define NO_COLUMNS _mm512_setzero_ps()
#define FMA(x, columns, sum) _mm512_fmadd_ps(_mm512_set1_ps(x), columns, sum)
#define EVEN(pairs) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16))
#define ODD(pairs) _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32((int32_t)0xffff0000)))
#define ADD_TO(at, sum) _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), sum))
#define TURN_FOUR(w, apart, turned) turn_sixteen(w, apart, (Turned *)(turned))
#elif defined __AVX2__ && defined __FMA__
enum { SLIM = 8, COLUMNS_WIDE = 8 };
typedef __m256 Columns;
#define NO_COLUMNS _mm256_setzero_ps()
#define FMA(x, columns, sum) _mm256_fmadd_ps(_mm256_set1_ps(x), columns, sum)
#define EVEN(pairs) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16))
#define ODD(pairs) _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32((int32_t)0xffff0000)))
#define ADD_TO(at, sum) _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), sum))
#define TURN_FOUR turn_eight
#endif

#ifdef FMA
static inline int is_slim(int64_t M) { return M <= SLIM; }

/* [K, M]: M rows a power of two apart would evict one another from the L1 cache. */
static void pack_slim(const float *x, int64_t M, int64_t K, float *packed) { transpose(x, M, K, K, packed, M); }

/* Adds the products of one k to the sums of M rows. */
ALWAYS_INLINE void meet(const float *x, Columns columns, Columns *sum, const int M) {
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) sum[m] = FMA(x[m], columns, sum[m]);
}

ALWAYS_INLINE void meet_words(int64_t type, const float *x, const Columns *turned, Columns *sum, const int words, const int M) {
#pragma GCC unroll 16
    for (int j = 0; j < words; j++)
        if (type == F32) meet(x + j * M, turned[j], sum, M);
        else meet(x + 2 * j * M, EVEN(turned[j]), sum, M), meet(x + (2 * j + 1) * M, ODD(turned[j]), sum, M);
}

/* Adds to sums [G, M, COLUMNS_WIDE]: x [depth, M] times COLUMNS_WIDE G rows of w. Prefetches as many lines as it reads. */
ALWAYS_INLINE void slim_tile(int64_t type, const float *x, const char *w, int64_t K, int64_t depth, float *sums,
                             const char *next, const int M, const int G) {
    const int64_t size = type == F32 ? 4 : 2, four = 16 / size;
    Columns sum[2][SLIM];
#pragma GCC unroll 2
    for (int g = 0; g < G; g++)
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) sum[g][m] = NO_COLUMNS;
    int64_t k = 0;
#ifdef __AVX512F__
    for (; k + 4 * four <= depth; k += 4 * four) {
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) {
            Columns turned[16];
#pragma GCC unroll 16
            for (int line = 0; line < COLUMNS_WIDE; line++, next += 64) __builtin_prefetch(next, 0, 2);
            turn_lines((const float *)(w + (COLUMNS_WIDE * g * K + k) * size), K * size / 4, (Turned *)turned);
            meet_words(type, x + k * M, turned, sum[g], 16, M);
        }
    }
#endif
    for (; k < depth; k += four) {
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) {
            Columns turned[4];
#pragma GCC unroll 4
            for (int line = 0; line < COLUMNS_WIDE / 4; line++, next += 64) __builtin_prefetch(next, 0, 2);
            TURN_FOUR((const float *)(w + (COLUMNS_WIDE * g * K + k) * size), K * size / 4, turned);
            meet_words(type, x + k * M, turned, sum[g], 4, M);
        }
    }
#pragma GCC unroll 2
    for (int g = 0; g < G; g++)
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) ADD_TO(sums + (g * M + m) * COLUMNS_WIDE, sum[g][m]);
}

/* Columns `n` to `n + COLUMNS_WIDE G`; prefetches the following ones. */
ALWAYS_INLINE void slim_columns(int64_t type, const float *x, int64_t K, const void *w, int64_t n, float *out, int64_t apart,
                                const int M, const int G) {
    const int64_t size = type == F32 ? 4 : 2, wide = COLUMNS_WIDE * G;
    float sums[2 * SLIM * COLUMNS_WIDE];
    memset(sums, 0, G * M * COLUMNS_WIDE * sizeof(float));
    for (int64_t k = 0; k < K; k += KC)
        slim_tile(type, x + k * M, (const char *)w + (n * K + k) * size, K, least(KC, K - k), sums,
                  (const char *)w + ((n + wide) * K + wide * k) * size, M, G);
    for (int g = 0; g < G; g++)
        for (int m = 0; m < M; m++) memcpy(out + m * apart + COLUMNS_WIDE * g, sums + (g * M + m) * COLUMNS_WIDE, COLUMNS_WIDE * sizeof(float));
}

/* x points to one of M rows. */
static float slim_one(int64_t type, const float *x, int64_t M, const void *w, int64_t offset, int64_t K) {
    float total = 0;
    for (int64_t begin = 0; begin < K; begin += KC) {
        float sum = 0;
        for (int64_t k = begin; k < least(begin + KC, K); k++)
            sum = __builtin_fmaf(x[k * M], type == F32 ? ((const float *)w)[offset + k] : from_bf16(((const uint16_t *)w)[offset + k]), sum);
        total += sum;
    }
    return total;
}

/* Like `product`, with x from `pack_slim`. Two groups of columns at once, if registers have room for their sums, hide
 * the latency of additions. */
ALWAYS_INLINE void slim_rows(int64_t type, const float *x, int64_t K, const void *w, int64_t from, int64_t to, float *out,
                             int64_t apart, const int M) {
    const int G = type != F32 && M <= 2 ? 2 : 1;
    int64_t n = from;
    for (; n + COLUMNS_WIDE * G <= to; n += COLUMNS_WIDE * G) slim_columns(type, x, K, w, n, out + n - from, apart, M, G);
    for (; G > 1 && n + COLUMNS_WIDE <= to; n += COLUMNS_WIDE) slim_columns(type, x, K, w, n, out + n - from, apart, M, 1);
    for (; n < to; n++)
        for (int m = 0; m < M; m++) out[m * apart + n - from] = slim_one(type, x + m, M, w, n * K, K);
}

static void slim_product(int64_t type, const float *x, int64_t M, int64_t K, const void *w, int64_t from, int64_t to,
                         float *out, int64_t apart) {
#define ROWS(M)                                                                                                        \
    case M:                                                                                                            \
        if (type == F32) slim_rows(F32, x, K, w, from, to, out, apart, M);                                             \
        else slim_rows(BF16, x, K, w, from, to, out, apart, M);                                                        \
        break;
    switch (M) {
        ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#ifdef __AVX512F__
        ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14) ROWS(15) ROWS(16)
#endif
    }
#undef ROWS
}
#else
static inline int is_slim(int64_t M) { return 0 * M; }

static void pack_slim(const float *x, int64_t M, int64_t K, float *packed) { (void)x, (void)M, (void)K, (void)packed; }

static void slim_product(int64_t type, const float *x, int64_t M, int64_t K, const void *w, int64_t from, int64_t to,
                         float *out, int64_t apart) {
    (void)type, (void)x, (void)M, (void)K, (void)w, (void)from, (void)to, (void)out, (void)apart;
}
#endif
#endif
