/* Transposition of rows in registers, so that lanes are columns. A word is one fp32 number or two bf16 numbers; rows
 * are `apart` words from one to the next. */
#ifndef RONDO_TURNED_H
#define RONDO_TURNED_H
#include "build/vectors.h"

#if defined __AVX2__ && defined __FMA__
/* turned[j] has words j of eight rows, each of four words. */
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

typedef float Turned __attribute__((vector_size(64), aligned(4), may_alias));

ALWAYS_INLINE Turned side_by_side(__m256 a, __m256 b) {
#ifdef __AVX512DQ__
    return (Turned)_mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1);
#else
    union { __m256 halves[2]; Turned both; } u = {{a, b}};
    return u.both;
#endif
}

/* turned[j] has words j of sixteen rows, each of four words. */
ALWAYS_INLINE void turn_sixteen(const float *w, int64_t apart, Turned *turned) {
    __m256 first[4], second[4];
    turn_eight(w, apart, first);
    turn_eight(w + 8 * apart, apart, second);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) turned[j] = side_by_side(first[j], second[j]);
}

#ifdef __AVX512F__
/* turned[j] has words j of sixteen rows of as many; overwrites `a`. */
ALWAYS_INLINE void turn_square(__m512 *a, Turned *turned) {
    __m512 b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44), a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44), a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512 low = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x44), high = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xee);
        const __m512 Low = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x44), High = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xee);
        turned[j] = (Turned)_mm512_shuffle_f32x4(low, Low, 0x88), turned[4 + j] = (Turned)_mm512_shuffle_f32x4(low, Low, 0xdd);
        turned[8 + j] = (Turned)_mm512_shuffle_f32x4(high, High, 0x88), turned[12 + j] = (Turned)_mm512_shuffle_f32x4(high, High, 0xdd);
    }
}
#endif

/* Like `turn_sixteen`, with sixteen words: whole cache lines, each read once. */
ALWAYS_INLINE void turn_lines(const float *w, int64_t apart, Turned *turned) {
#ifdef __AVX512F__
    __m512 rows[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) rows[i] = _mm512_loadu_ps(w + i * apart);
    turn_square(rows, turned);
#else
    for (int j = 0; j < 4; j++) turn_sixteen(w + 4 * j, apart, turned + 4 * j);
#endif
}
#endif

#ifdef __AVX512F__
/* to [columns, wide] = the transpose of from [rows, apart]. */
static __attribute__((noinline)) void transpose(const float *from, int64_t rows, int64_t columns, int64_t apart, float *to, int64_t wide) {
    for (int64_t r = 0; r < rows; r += 16) {
        const int64_t high = least(16, rows - r);
        const __mmask16 across = (__mmask16)((1u << high) - 1);
        for (int64_t c = 0; c < columns; c += 16) {
            const int64_t broad = least(16, columns - c);
            const __mmask16 there = (__mmask16)((1u << broad) - 1);
            __m512 square[16];
            Turned turned[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) square[i] = _mm512_maskz_loadu_ps(i < high ? there : 0, from + (r + i) * apart + c);
            turn_square(square, turned);
#pragma GCC unroll 16
            for (int j = 0; j < 16; j++) _mm512_mask_storeu_ps(to + (c + j) * wide + r, j < broad ? across : 0, (__m512)turned[j]);
        }
    }
}
#else
ALWAYS_INLINE void turn(const float *from, int64_t apart, float *to, int64_t wide) {
    const Half a = *(const Half *)from, b = *(const Half *)(from + apart), c = *(const Half *)(from + 2 * apart),
               d = *(const Half *)(from + 3 * apart);
    const Half ab = SHUFFLE(a, b, 0, 4, 1, 5), cd = SHUFFLE(c, d, 0, 4, 1, 5), AB = SHUFFLE(a, b, 2, 6, 3, 7),
               CD = SHUFFLE(c, d, 2, 6, 3, 7);
    *(Half *)to = SHUFFLE(ab, cd, 0, 1, 4, 5), *(Half *)(to + wide) = SHUFFLE(ab, cd, 2, 3, 6, 7);
    *(Half *)(to + 2 * wide) = SHUFFLE(AB, CD, 0, 1, 4, 5), *(Half *)(to + 3 * wide) = SHUFFLE(AB, CD, 2, 3, 6, 7);
}

/* to [columns, wide] = the transpose of from [rows, apart]. */
static void transpose(const float *from, int64_t rows, int64_t columns, int64_t apart, float *to, int64_t wide) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        int64_t c = 0;
        for (; c + 4 <= columns; c += 4) turn(from + r * apart + c, apart, to + c * wide + r, wide);
        for (; c < columns; c++)
            for (int64_t i = r; i < r + 4; i++) to[c * wide + i] = from[i * apart + c];
    }
    for (; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) to[c * wide + r] = from[r * apart + c];
}
#endif
#endif
