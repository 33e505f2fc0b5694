/* Conversion of numbers between float and the types of a KV cache. Rows of int8 and fp8 have a scale: see
 * ops/attention/pages.py, the same in torch; both write bitwise equal data. */
#ifndef RONDO_NUMBERS_H
#define RONDO_NUMBERS_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { F32, BF16, F16, INT8, FP8 };

static inline float as_float(uint32_t x) {
    union { uint32_t i; float f; } u = {x};
    return u.f;
}

static inline uint32_t as_bits(float x) {
    union { float f; uint32_t i; } u = {x};
    return u.i;
}

static inline float from_bf16(uint16_t x) { return as_float((uint32_t)x << 16); }

/* Rounding would carry a NaN with nearly all bits set over into zero, so NaN is stored as a fixed quiet NaN. */
static inline uint16_t to_bf16(float x) {
    const uint32_t u = as_bits(x);
    return x != x ? 0x7fc0 : (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* Without branches, so that compilers vectorize loops. The exponent moves by 112; below the smallest normal number a 1
 * is put before the mantissa and subtracted again. */
static inline float from_f16(uint16_t x) {
    const uint32_t u = (uint32_t)(x & 0x7fff) << 13, exponent = x & 0x7c00;
    const uint32_t shift = exponent == 0x7c00 ? 224u << 23 : 112u << 23;
    const float size = exponent ? as_float(u + shift) : as_float(u + (113u << 23)) - 0x1p-14f;
    return as_float(as_bits(size) | (uint32_t)(x & 0x8000) << 16);
}

static inline uint16_t to_f16(float x) {
    const uint32_t u = as_bits(x) & 0x7fffffff, sign = as_bits(x) >> 16 & 0x8000;
    if (u >= 0x47800000) return (uint16_t)(sign | (u > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (u < 0x38800000) return (uint16_t)(sign | (as_bits(as_float(u) + 0.5f) - as_bits(0.5f)));
    return (uint16_t)(sign | (((u + 0xfff + (u >> 13 & 1)) >> 13) - (112u << 10)));
}

/* e4m3, which has no infinity; its NaN is never stored. */
static inline float from_fp8(uint8_t x) {
    const uint32_t u = (uint32_t)(x & 0x7f) << 20;
    const float size = x & 0x78 ? as_float(u + (120u << 23)) : as_float(u + (121u << 23)) - 0x1p-6f;
    return as_float(as_bits(size) | (uint32_t)(x & 0x80) << 24);
}

/* The argument is at most 448, except for rounding. */
static inline uint8_t to_fp8(float x) {
    const uint32_t u = as_bits(x) & 0x7fffffff, sign = as_bits(x) >> 24 & 0x80;
    if (u < 0x3c800000) return (uint8_t)(sign | (as_bits(as_float(u) + 0x1p14f) - as_bits(0x1p14f)));
    return (uint8_t)(sign | (((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120u << 3)));
}

static inline int8_t to_int8(float x) { return (int8_t)rintf(x); }

/* Cephes' expf without its special cases, for arguments that are not above 0. */
ALWAYS_INLINE float exp_neg(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float n = floorf(x * 1.44269504088896341f + 0.5f);
    const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * as_float((uint32_t)((int32_t)n + 127) << 23);
}

ALWAYS_INLINE float sigmoid(float x) {
    const float down = x < 0 ? x : -x, e = down < -87.0f ? 0.0f : exp_neg(down);
    const float y = (x < 0 ? e : 1.0f) / (1.0f + e);
    return x == x ? y : x;
}

/* `count` numbers from `offset` on. */
static inline void widen(int64_t type, const void *from, int64_t offset, float *restrict to, int64_t count) {
    if (type == F32) memcpy(to, (const float *)from + offset, count * sizeof(float));
    else if (type == BF16)
        for (int64_t i = 0; i < count; i++) to[i] = from_bf16(((const uint16_t *)from)[offset + i]);
    else
        for (int64_t i = 0; i < count; i++) to[i] = from_f16(((const uint16_t *)from)[offset + i]);
}

static inline void narrow(int64_t type, const float *restrict from, void *to, int64_t offset, int64_t count) {
    if (type == F32) memcpy((float *)to + offset, from, count * sizeof(float));
    else if (type == BF16)
        for (int64_t i = 0; i < count; i++) ((uint16_t *)to)[offset + i] = to_bf16(from[i]);
    else
        for (int64_t i = 0; i < count; i++) ((uint16_t *)to)[offset + i] = to_f16(from[i]);
}

/* Scales a row so that its largest magnitude becomes `largest`; returns the inverse scale. A non-finite row becomes
 * zeros with a non-finite scale. Magnitudes are compared as integers, so that NaN is the largest. */
static inline float scale_row(float *restrict row, int64_t dim, float largest, float share) {
    int32_t most = 0;
    for (int64_t d = 0; d < dim; d++) {
        const int32_t size = (int32_t)(as_bits(row[d]) & 0x7fffffff);
        most = size > most ? size : most;
    }
    const float top = as_float((uint32_t)most), inverse = largest / top;
    if (inverse > 0 && inverse < INFINITY)
        for (int64_t d = 0; d < dim; d++) row[d] *= inverse;
    else memset(row, 0, dim * sizeof(float));
    return top * share;
}

/* Stores row number `index`; overwrites `row`. */
static inline void keep(int64_t type, float *restrict row, void *pages, float *scales, int64_t index, int64_t dim) {
    if (type == INT8) {
        scales[index] = scale_row(row, dim, 127.0f, (float)(1.0 / 127.0));
        for (int64_t d = 0; d < dim; d++) ((int8_t *)pages)[index * dim + d] = to_int8(row[d]);
    } else if (type == FP8) {
        scales[index] = scale_row(row, dim, 448.0f, (float)(1.0 / 448.0));
        for (int64_t d = 0; d < dim; d++) ((uint8_t *)pages)[index * dim + d] = to_fp8(row[d]);
    } else narrow(type, row, pages, index * dim, dim);
}

#if defined __AVX2__ && defined __F16C__

static inline void eight_f16(const uint16_t *from, float *to) {
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)));
}

/* With its exponent at the same position an fp8 number is an fp16 number 256 times smaller. */
static inline void eight_fp8(const uint8_t *from, float *to) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)from));
    const __m128i half = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xbf80));
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f)));
}
static inline void eight_int8(const int8_t *from, float *to) {
    _mm256_storeu_ps(to, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from))));
}
#else
static inline void eight_f16(const uint16_t *from, float *to) {
    for (int64_t i = 0; i < 8; i++) to[i] = from_f16(from[i]);
}

static inline void eight_fp8(const uint8_t *from, float *to) {
    for (int64_t i = 0; i < 8; i++) to[i] = from_fp8(from[i]);
}

static inline void eight_int8(const int8_t *from, float *to) {
    for (int64_t i = 0; i < 8; i++) to[i] = from[i];
}
#endif

static inline void eight_bf16(const uint16_t *from, float *to) {
    for (int64_t i = 0; i < 8; i++) to[i] = from_bf16(from[i]);
}

#define WIDEN_ROWS(T, EIGHT, ONE)                                                                                      \
    for (int64_t r = 0; r < count; r++) {                                                                              \
        const T *restrict own = (const T *)pages + (index + r * step) * dim;                                           \
        float *restrict row = to + r * wide;                                                                           \
        int64_t d = 0;                                                                                                 \
        for (; d + 8 <= dim; d += 8) EIGHT(own + d, row + d);                                                          \
        for (; d < dim; d++) row[d] = ONE(own[d]);                                                                     \
    }

/* Rows `index`, `index + step`, ... as floats, `apart` from one to the next: in place if they are floats and need no
 * padding, else in `to`, `wide` each. Scales are not applied. */
static inline const float *rows_of(int64_t type, const void *pages, int64_t index, int64_t step, int64_t count,
                                   int64_t dim, int64_t wide, float *restrict to, int64_t *apart) {
    if (type == F32 && dim == wide) {
        *apart = step * dim;
        return (const float *)pages + index * dim;
    }
    *apart = wide;
    if (type == F32)
        for (int64_t r = 0; r < count; r++) memcpy(to + r * wide, (const float *)pages + (index + r * step) * dim, dim * 4);
    else if (type == BF16) WIDEN_ROWS(uint16_t, eight_bf16, from_bf16)
    else if (type == F16) WIDEN_ROWS(uint16_t, eight_f16, from_f16)
    else if (type == INT8) WIDEN_ROWS(int8_t, eight_int8, (float))
    else WIDEN_ROWS(uint8_t, eight_fp8, from_fp8)
    return to;
}
#endif
