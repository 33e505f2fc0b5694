/* The product of so few rows that they would leave lanes empty: here lanes are columns. Rows of w are turned in registers,
 * and each number of x meets those of eight columns. A result is the same chain over K as in `product.h`, to the bit; but
 * weights come as fast as memory has them, where packed rows of x would take as long for one as for eight.
 */
#ifndef RONDO_SLIM_H
#define RONDO_SLIM_H
#include "vectors.h"

enum { SLIM = 8, DEEP = 256 };

#if defined __AVX2__ && defined __FMA__
static inline int is_slim(int64_t M) { return M <= SLIM; }

/* turned[j] has words j of eight rows of w, each of four words, `apart` from one to the next. */
ALWAYS_INLINE void turn_eight(const float *w, int64_t apart, __m256 *turned) {
    __m256 rows[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        rows[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(w + i * apart)), _mm_loadu_ps(w + (i + 4) * apart), 1);
    const __m256 ab = _mm256_unpacklo_ps(rows[0], rows[1]), cd = _mm256_unpacklo_ps(rows[2], rows[3]);
    const __m256 AB = _mm256_unpackhi_ps(rows[0], rows[1]), CD = _mm256_unpackhi_ps(rows[2], rows[3]);
    turned[0] = _mm256_shuffle_ps(ab, cd, 0x44), turned[1] = _mm256_shuffle_ps(ab, cd, 0xee);
    turned[2] = _mm256_shuffle_ps(AB, CD, 0x44), turned[3] = _mm256_shuffle_ps(AB, CD, 0xee);
}

/* Adds the products of one k to the sums of M rows. */
ALWAYS_INLINE void meet(const float *x, int64_t K, __m256 columns, __m256 *sum, const int M) {
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) sum[m] = _mm256_fmadd_ps(_mm256_broadcast_ss(x + m * K), columns, sum[m]);
}

/* Adds to sums [G, M, 8]: x [M, depth] times 8 G rows of w. Two numbers in bf16 are turned as one word. */
ALWAYS_INLINE void slim_tile(int64_t type, const float *x, const void *w, int64_t K, int64_t depth, float *sums,
                             const char *next, const int M, const int G) {
    const int64_t size = type == F32 ? 4 : 2, step = 16 / size;
    const __m256i high = _mm256_set1_epi32((int32_t)0xffff0000);
    __m256 sum[2][SLIM];
#pragma GCC unroll 2
    for (int g = 0; g < G; g++)
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) sum[g][m] = _mm256_setzero_ps();
    for (int64_t k = 0; k < depth; k += step) {
#pragma GCC unroll 4
        for (int line = 0; line < 2 * G; line++) __builtin_prefetch(next + (2 * G * k / step + line) * 64, 0, 2);
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) {
            __m256 turned[4];
            turn_eight((const float *)((const char *)w + (8 * g * K + k) * size), K * size / 4, turned);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                if (type == F32) {
                    meet(x + k + j, K, turned[j], sum[g], M);
                    continue;
                }
                const __m256i pair = _mm256_castps_si256(turned[j]);
                meet(x + k + 2 * j, K, _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)), sum[g], M);
                meet(x + k + 2 * j + 1, K, _mm256_castsi256_ps(_mm256_and_si256(pair, high)), sum[g], M);
            }
        }
    }
#pragma GCC unroll 2
    for (int g = 0; g < G; g++)
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            float *to = sums + (g * M + m) * 8;
            _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), sum[g][m]));
        }
}

/* Columns `n` to `n + 8 G`; what comes after them is asked for meanwhile. */
ALWAYS_INLINE void slim_columns(int64_t type, const float *x, int64_t K, const void *w, int64_t n, float *out, int64_t apart,
                                const int M, const int G) {
    const int64_t size = type == F32 ? 4 : 2;
    float sums[2 * SLIM * 8] = {0};
    for (int64_t k = 0; k < K; k += DEEP)
        slim_tile(type, x + k, (const char *)w + (n * K + k) * size, K, least(DEEP, K - k), sums,
                  (const char *)w + ((n + 8 * G) * K + 8 * G * k) * size, M, G);
    for (int g = 0; g < G; g++)
        for (int m = 0; m < M; m++) memcpy(out + m * apart + 8 * g, sums + (g * M + m) * 8, 8 * sizeof(float));
}

static float slim_one(int64_t type, const float *x, const void *w, int64_t offset, int64_t K) {
    float total = 0;
    for (int64_t begin = 0; begin < K; begin += DEEP) {
        float sum = 0;
        for (int64_t k = begin; k < least(begin + DEEP, K); k++)
            sum = __builtin_fmaf(x[k], type == F32 ? ((const float *)w)[offset + k] : from_bf16(((const uint16_t *)w)[offset + k]), sum);
        total += sum;
    }
    return total;
}

/* As `product`, with x as it is. Two groups of columns at once, where registers have room for their sums, hide how long
 * an addition takes. */
ALWAYS_INLINE void slim_rows(int64_t type, const float *x, int64_t K, const void *w, int64_t from, int64_t to, float *out,
                             int64_t apart, const int M) {
    const int G = type != F32 && M <= 2 ? 2 : 1;
    int64_t n = from;
    for (; n + 8 * G <= to; n += 8 * G) slim_columns(type, x, K, w, n, out + n - from, apart, M, G);
    for (; n < to; n++)
        for (int m = 0; m < M; m++) out[m * apart + n - from] = slim_one(type, x + m * K, w, n * K, K);
}

static void slim_product(int64_t type, const float *x, int64_t M, int64_t K, const void *w, int64_t from, int64_t to,
                         float *out, int64_t apart) {
#define ROWS(M)                                                                                                        \
    case M:                                                                                                            \
        if (type == F32) slim_rows(F32, x, K, w, from, to, out, apart, M);                                             \
        else slim_rows(BF16, x, K, w, from, to, out, apart, M);                                                        \
        break;
    switch (M) { ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) }
#undef ROWS
}
#else
static inline int is_slim(int64_t M) { return 0 * M; }

static void slim_product(int64_t type, const float *x, int64_t M, int64_t K, const void *w, int64_t from, int64_t to,
                         float *out, int64_t apart) {
    (void)type, (void)x, (void)M, (void)K, (void)w, (void)from, (void)to, (void)out, (void)apart;
}
#endif
#endif
