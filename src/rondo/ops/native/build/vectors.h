/* Vectors of floats as compiler extensions, and sums over their lanes. */
#ifndef RONDO_VECTORS_H
#define RONDO_VECTORS_H
#include "build/numbers.h"

enum { LANES = 8, HALF = 4 };

typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float Half __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
typedef int32_t HalfIndex __attribute__((vector_size(2 * LANES)));

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (HalfIndex){__VA_ARGS__})
#endif

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

ALWAYS_INLINE Half halved(Vec x) {
    union { Vec whole; Half halves[2]; } u = {x};
    return u.halves[0] + u.halves[1];
}

ALWAYS_INLINE float total(Vec x) {
    const Half h = halved(x);
    return (h[0] + h[1]) + (h[2] + h[3]);
}

/* c + a b, rounded once if the CPU supports it. Otherwise compilers would separate the operations in one loop and not
 * in another. */
ALWAYS_INLINE float fused(float a, float b, float c) {
#if defined __FMA__ || defined __aarch64__
    return __builtin_fmaf(a, b, c);
#else
    return c + a * b;
#endif
}

ALWAYS_INLINE Vec fused_all(Vec a, Vec b, Vec c) {
#if defined __AVX__ && defined __FMA__
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    for (int i = 0; i < LANES; i++) c[i] = fused(a[i], b[i], c[i]);
    return c;
#endif
}

/* Sums in lanes with a fixed order, which the compiler must not choose. */
static inline float squares(const float *x, int64_t n) {
    Vec lanes = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) lanes = fused_all(*(const Vec *)(x + i), *(const Vec *)(x + i), lanes);
    float sum = total(lanes);
    for (; i < n; i++) sum = fused(x[i], x[i], sum);
    return sum;
}

static inline float sum_of(const float *x, int64_t n) {
    Vec lanes = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) lanes += *(const Vec *)(x + i);
    float sum = total(lanes);
    for (; i < n; i++) sum += x[i];
    return sum;
}

/* By lanes: a sequential loop would wait for each comparison. */
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

/* The sums of four halves, as one vector. */
ALWAYS_INLINE Half sums(Half a, Half b, Half c, Half d) {
    const Half ab = SHUFFLE(a, b, 0, 4, 1, 5) + SHUFFLE(a, b, 2, 6, 3, 7);
    const Half cd = SHUFFLE(c, d, 0, 4, 1, 5) + SHUFFLE(c, d, 2, 6, 3, 7);
    return SHUFFLE(ab, cd, 0, 1, 4, 5) + SHUFFLE(ab, cd, 2, 3, 6, 7);
}
#endif
