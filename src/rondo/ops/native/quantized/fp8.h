/* Products of fp8 with floats: for few rows of x with lanes along a row, for many with packed rows and a panel of a
 * weight in fp32. */
#ifndef RONDO_FP8_H
#define RONDO_FP8_H
#include "quantized/panels.h"

#if defined __AVX512BW__ && defined __AVX512DQ__
/* tile [8]: one row, two columns a vector. */
static void fp8_row(const Weight *w, const float *x, int64_t K, const Eight *e, float *tile) {
    float acc[COLUMNS] = {0};
    for (int64_t group = 0, g = 0; group < K; group += w->group, g += COLUMNS) {
        __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int64_t k = group; k < group + w->group; k += LANES) {
            const __m512 own = _mm512_broadcast_f32x8(_mm256_loadu_ps(x + k));
#pragma GCC unroll 4
            for (int p = 0; p < 4; p++) {
                const __m128i first = _mm_loadl_epi64((const __m128i *)(e->rows[2 * p] + k));
                const __m128i second = _mm_loadl_epi64((const __m128i *)(e->rows[2 * p + 1] + k));
                const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_unpacklo_epi64(first, second)), 7);
                const __m512 numbers = _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16((short)0xbf80)));
                sum[p] = _mm512_fmadd_ps(_mm512_mul_ps(numbers, _mm512_set1_ps(256.0f)), own, sum[p]);
            }
        }
        for (int c = 0; c < COLUMNS; c++) {
            const Vec all = (Vec)(c % 2 ? _mm512_extractf32x8_ps(sum[c / 2], 1) : _mm512_castps512_ps256(sum[c / 2]));
            acc[c] = __builtin_fmaf(total(all), e->scales[g + c], acc[c]);
        }
    }
    memcpy(tile, acc, sizeof acc);
}
#endif

/* tile [M, N] of fp8: in each group eight chains, then their sum. */
ALWAYS_INLINE void fp8_tile(const Weight *w, const float *x, int64_t K, const Eight *e, const int first, float *tile, const int M,
                            const int N) {
    float acc[4 * COLUMNS] = {0};
    for (int64_t group = 0, g = first; group < K; group += w->group, g += COLUMNS) {
        Vec sum[8] = {{0}};
        for (int64_t k = group; k < group + w->group; k += LANES)
#pragma GCC unroll 8
            for (int c = 0; c < N; c++) {
                union { float each[LANES]; Vec all; } numbers;
                eight_fp8(e->rows[first + c] + k, numbers.each);
#pragma GCC unroll 4
                for (int m = 0; m < M; m++)
                    sum[m * N + c] = fused_all(numbers.all, *(const Vec *)(x + m * K + k), sum[m * N + c]);
            }
        for (int m = 0; m < M; m++)
            for (int c = 0; c < N; c++) acc[m * N + c] = __builtin_fmaf(total(sum[m * N + c]), e->scales[g + c], acc[m * N + c]);
    }
    for (int m = 0; m < M; m++) memcpy(tile + m * COLUMNS + first, acc + m * N, N * sizeof(float));
}

/* Columns whose eight chains are in registers. */
#if defined __AVX512F__ || defined __aarch64__
enum { CHAINED = 3 };
#else
enum { CHAINED = 1 };
#endif

/* Packs REGISTER_FLOATS rows, with zeros for missing ones. */
static void ready_for_fp8(const float *x, int64_t M, int64_t K, float *ready) {
    for (int64_t m = 0; m < M; m += REGISTER_FLOATS) {
        if (M - m < REGISTER_FLOATS) memset(ready + m * K, 0, REGISTER_FLOATS * K * sizeof(float));
        transpose(x + m * K, least(REGISTER_FLOATS, M - m), K, K, ready + m * K, REGISTER_FLOATS);
    }
}

/* Adds a group to acc [C]: REGISTER_FLOATS rows of x, and C rows of w that are K apart. */
ALWAYS_INLINE void chained_tile(const float *x, const float *w, int64_t K, int64_t group, const float *scales, int64_t groups, Long *acc,
                                const int C) {
    Long sum[CHAINED][8];
#pragma GCC unroll 4
    for (int c = 0; c < C; c++)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) sum[c][i] = (Long){0};
    for (int64_t k = 0; k < group; k += 8)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            Long own = *(const Long *)(x + (k + i) * REGISTER_FLOATS);
            HOLD(own);
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) sum[c][i] = MULTIPLY_ADD(own, w[c * K + k + i] - (Long){0}, sum[c][i]);
        }
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
        const Long *s = sum[c], all = ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
        acc[c] = multiply_add(all, scales[c * groups] - (Long){0}, acc[c]);
    }
}

static void fp8_panels(const Weight *w, const float *ready, int64_t M, int64_t K, int64_t from, int64_t to, float *out, int64_t apart,
                       float *wide) {
    const int64_t groups = K / w->group;
    float *scales = wide + PANEL * K;
    for (int64_t n = from, count; n < to; n += count) {
        count = least(PANEL, to - n);
        for (int64_t c = 0; c < count; c++) {
            for (int64_t k = 0; k < K; k += 8) eight_fp8((const uint8_t *)w->data + (n + c) * K + k, wide + c * K + k);
            memcpy(scales + c * groups, (const float *)w->scales + scale_index(w, K, n + c), groups * sizeof(float));
        }
        for (int64_t i = 0; i < count * K; i += 64) __builtin_prefetch((const char *)w->data + (n + count) * K + i, 0, 2);
        for (int64_t m = 0; m < M; m += REGISTER_FLOATS) {
            Long acc[PANEL] = {{0}};
            for (int64_t k = 0, g = 0; k < K; k += w->group, g++) {
                const float *x = ready + m * K + k * REGISTER_FLOATS;
                int64_t c = 0;
                for (; c + CHAINED <= count; c += CHAINED)
                    chained_tile(x, wide + c * K + k, K, w->group, scales + c * groups + g, groups, acc + c, CHAINED);
                for (; c < count; c++) chained_tile(x, wide + c * K + k, K, w->group, scales + c * groups + g, groups, acc + c, 1);
            }
            transpose((const float *)acc, count, least(REGISTER_FLOATS, M - m), REGISTER_FLOATS, out + m * apart + n - from, apart);
        }
    }
}

static void fp8_product(const Weight *w, const float *x, int64_t M, int64_t K, int64_t from, int64_t to, float *out,
                        int64_t apart, float *room) {
    float tile[4 * COLUMNS];
    for (int64_t n = from; n < to; n += COLUMNS) {
        const Eight e = eight_at(w, K, n, to - 1, room);
        for (int64_t i = 0; i < COLUMNS * K; i += 64) __builtin_prefetch(e.next + i, 0, 2);
        for (int64_t m = 0, rows; m < M; m += rows) {
            const float *own = x + m * K;
            rows = M - m >= 4 ? 4 : M - m >= 2 ? 2 : 1;
#if defined __AVX512BW__ && defined __AVX512DQ__
            if (rows == 1) fp8_row(w, own, K, &e, tile);
#else
            if (rows == 1) fp8_tile(w, own, K, &e, 0, tile, 1, 8);
#endif
            else
                for (int c = 0; c < COLUMNS; c += 8 / rows)
                    if (rows == 2) fp8_tile(w, own, K, &e, c, tile, 2, 4);
                    else fp8_tile(w, own, K, &e, c, tile, 4, 2);
            for (int64_t i = 0; i < rows; i++) memcpy(out + (m + i) * apart + n - from, tile + i * COLUMNS, least(COLUMNS, to - n) * sizeof(float));
        }
    }
}
#endif
