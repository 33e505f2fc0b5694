/* Operations on a token's row, or on a head of it: in fp32, rounded as the model's type would round it. */
#ifndef RONDO_ROW_H
#define RONDO_ROW_H
#include "decoder/layers.h"

static inline float at(int64_t type, const void *from, int64_t i) {
    return type == F32 ? ((const float *)from)[i] : from_bf16(((const uint16_t *)from)[i]);
}

/* Rounds numbers to the model's type. */
static inline void settle(int64_t type, float *restrict x, int64_t count) {
    if (type == BF16)
        for (int64_t i = 0; i < count; i++) x[i] = from_bf16(to_bf16(x[i]));
}

/* Eight weights of a norm. */
ALWAYS_INLINE Vec eight_of(int64_t type, const void *weights, int64_t i) {
    union { float each[LANES]; Vec all; } u;
    if (type == F32) return *(const Vec *)((const float *)weights + i);
    eight_bf16((const uint16_t *)weights + i, u.each);
    return u.all;
}

/* n is a multiple of LANES. */
static void norm(const Args *a, const float *x, const void *weight, float *out, int64_t n) {
    const float scale = 1.0f / sqrtf(squares(x, n) / n + (float)a->eps), offset = (float)a->offset;
    for (int64_t i = 0; i < n; i += LANES) *(Vec *)(out + i) = *(const Vec *)(x + i) * scale * (eight_of(a->given, weight, i) + offset);
    settle(a->given, out, n);
}

/* Half of a head is a multiple of HALF. */
static void rotate(const Args *a, const Layer *l, int64_t token, float *x) {
    if (l->rope < 0) return;
    const int64_t row = a->turns[l->rope][token] * l->half;
    const float *cosine = a->cosines[l->rope] + row, *sine = a->sines[l->rope] + row;
    for (int64_t i = 0; i < l->half; i += HALF) {
        const Half first = *(const Half *)(x + i), second = *(const Half *)(x + l->half + i);
        const Half c = *(const Half *)(cosine + i), s = *(const Half *)(sine + i);
        *(Half *)(x + i) = first * c - second * s;
        *(Half *)(x + l->half + i) = second * c + first * s;
    }
    settle(a->given, x, 2 * l->half);
}
#endif
