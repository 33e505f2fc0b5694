/* Pointwise operations between matrix products, each in one pass over its rows: RMSNorm, gated activations and
 * rotation, with their backward passes. Numbers are read and written as fp32 or bf16 and computed in fp32.
 *
 * A row's arithmetic depends on the row only, and sums over rows are computed in blocks of a fixed size, so results
 * depend neither on the batch nor on the number of threads.
 */
#include "build/vectors.h"

#define PARALLEL _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
#define IN(T) const T *restrict
#define OUT(T) T *restrict
#define STRIDE 4096 /* numbers of an elementwise operation in one task */

ALWAYS_INLINE float from_float(float x) { return x; }
ALWAYS_INLINE float to_float(float x) { return x; }

/* Adds the products A B for each i below n to lanes: vectorizable, with a fixed order of sums. */
#define IN_LANES(SUMS, A, B)                                                                                           \
    for (int64_t at = 0; at < n / LANES * LANES; at += LANES)                                                          \
        for (int64_t lane = 0, i = at; lane < LANES; lane++, i++) SUMS[lane] = fused(A, B, SUMS[lane]);                                  \
    for (int64_t i = n / LANES * LANES; i < n; i++) SUMS[i % LANES] = fused(A, B, SUMS[i % LANES]);

/* Activations and their derivatives, which are 0 beyond a clamp. */
enum { MOST = 7 };
static const float STEEP = 1.702f, GELU = 0.7978845608028654f, CUBE = 0.044715f, ROOT = 0.7071067811865476f;

ALWAYS_INLINE float silu(float x) { return x * sigmoid(x); }
ALWAYS_INLINE float silu_slope(float x) {
    const float y = sigmoid(x);
    return y * (1.0f + x * (1.0f - y));
}
/* (1 + tanh u) / 2 is a sigmoid of 2 u. */
ALWAYS_INLINE float gelu_tanh(float x) { return x * sigmoid(2.0f * GELU * (x + CUBE * x * x * x)); }
ALWAYS_INLINE float gelu_tanh_slope(float x) {
    const float y = sigmoid(2.0f * GELU * (x + CUBE * x * x * x));
    return y + x * y * (1.0f - y) * 2.0f * GELU * (1.0f + 3.0f * CUBE * x * x);
}
ALWAYS_INLINE float gelu(float x) { return 0.5f * x * (1.0f + erff(x * ROOT)); }
ALWAYS_INLINE float gelu_slope(float x) {
    return 0.5f * (1.0f + erff(x * ROOT)) + x * 0.5f * GELU * expf(-0.5f * x * x);
}
ALWAYS_INLINE float clamped(float x) {
    x = x > MOST ? MOST : x;
    return x * sigmoid(STEEP * x);
}
ALWAYS_INLINE float clamped_slope(float x) {
    const float y = sigmoid(STEEP * x);
    return x > MOST ? 0.0f : y * (1.0f + STEEP * x * (1.0f - y));
}
ALWAYS_INLINE float as_it_is(float x) { return x; }
ALWAYS_INLINE float one(float x) { return x == x ? 1.0f : x; }
ALWAYS_INLINE float one_more(float x) { return (x > MOST ? MOST : x < -MOST ? -MOST : x) + 1.0f; }
ALWAYS_INLINE float one_within(float x) { return x > MOST || x < -MOST ? 0.0f : one(x); }

#define DEFINE(TYPE, T, LOAD, STORE)                                                                                   \
    DEFINE_GATED(silu, silu, as_it_is, one, TYPE, T, LOAD, STORE)                                                      \
    DEFINE_GATED(gelu_tanh, gelu_tanh, as_it_is, one, TYPE, T, LOAD, STORE)                                            \
    DEFINE_GATED(gelu, gelu, as_it_is, one, TYPE, T, LOAD, STORE)                                                      \
    DEFINE_GATED(clamped_swiglu, clamped, one_more, one_within, TYPE, T, LOAD, STORE)                                  \
    DEFINE_ROWS(TYPE, T, LOAD, STORE)

/* ACT of the gate times BY of up. */
#define DEFINE_GATED(NAME, ACT, BY, BY_SLOPE, TYPE, T, LOAD, STORE)                                                    \
    void NAME##_##TYPE(IN(T) gate, IN(T) up, OUT(T) out, int64_t n, int64_t threads) {                                 \
        PARALLEL for (int64_t at = 0; at < n; at += STRIDE) {                                                          \
            const int64_t last = at + STRIDE < n ? at + STRIDE : n;                                                    \
            for (int64_t i = at; i < last; i++) out[i] = STORE(ACT(LOAD(gate[i])) * BY(LOAD(up[i])));                  \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    void NAME##_backward_##TYPE(IN(T) grad, IN(T) gate, IN(T) up, OUT(T) grad_gate, OUT(T) grad_up, int64_t n,         \
                                int64_t threads) {                                                                     \
        PARALLEL for (int64_t at = 0; at < n; at += STRIDE) {                                                          \
            const int64_t last = at + STRIDE < n ? at + STRIDE : n;                                                    \
            for (int64_t i = at; i < last; i++) {                                                                      \
                const float g = LOAD(grad[i]), x = LOAD(gate[i]), by = LOAD(up[i]);                                    \
                grad_gate[i] = STORE(g * BY(by) * ACT##_slope(x));                                                     \
                grad_up[i] = STORE(g * ACT(x) * BY_SLOPE(by));                                                         \
            }                                                                                                          \
        }                                                                                                              \
    }

#define DEFINE_ROWS(TYPE, T, LOAD, STORE)                                                                                   \
    void rms_norm_##TYPE(IN(T) x, IN(T) weight, OUT(T) out, OUT(float) inverse, int64_t rows, int64_t n, float eps,    \
                         float offset, int64_t threads) {                                                              \
        PARALLEL for (int64_t row = 0; row < rows; row++) {                                                            \
            const T *restrict from = x + row * n;                                                                      \
            T *restrict to = out + row * n;                                                                            \
            float squares[LANES] = {0};                                                                                \
            IN_LANES(squares, LOAD(from[i]), LOAD(from[i]))                                                           \
            const float scale = 1.0f / sqrtf(sum_of(squares, LANES) / n + eps);                                                         \
            for (int64_t i = 0; i < n; i++) to[i] = STORE(LOAD(from[i]) * scale * (LOAD(weight[i]) + offset));         \
            if (inverse) inverse[row] = scale;                                                                         \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    /* `partial` [blocks of rows, n] takes each block's part of the weight's gradient. */                              \
    void rms_norm_backward_##TYPE(IN(T) grad, IN(T) x, IN(T) weight, IN(float) inverse, OUT(T) grad_x,                 \
                                  OUT(float) partial, int64_t rows, int64_t n, int64_t block, float offset,            \
                                  int64_t threads) {                                                                   \
        const int64_t blocks = (rows + block - 1) / block;                                                             \
        PARALLEL for (int64_t b = 0; b < blocks; b++) {                                                                \
            float *restrict sums = partial + b * n;                                                                    \
            memset(sums, 0, n * sizeof(float));                                                                        \
            const int64_t last = (b + 1) * block < rows ? (b + 1) * block : rows;                                      \
            for (int64_t row = b * block; row < last; row++) {                                                         \
                const T *restrict g = grad + row * n, *restrict from = x + row * n;                                    \
                T *restrict to = grad_x + row * n;                                                                     \
                const float scale = inverse[row];                                                                      \
                float dots[LANES] = {0};                                                                               \
                IN_LANES(dots, LOAD(g[i]) * (LOAD(weight[i]) + offset), LOAD(from[i]))                                \
                const float share = sum_of(dots, LANES) * scale * scale / n;                                                           \
                for (int64_t i = 0; i < n; i++) {                                                                      \
                    const float normed = LOAD(from[i]) * scale;                                                        \
                    sums[i] += LOAD(g[i]) * normed;                                                                    \
                    to[i] = STORE(scale * (LOAD(g[i]) * (LOAD(weight[i]) + offset) - LOAD(from[i]) * share));          \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    /* x [tokens, heads, dim], cos and sin [tokens, half]; `sign` -1 turns back. */                                    \
    void rotate_##TYPE(IN(T) x, IN(T) cos, IN(T) sin, OUT(T) out, int64_t tokens, int64_t heads, int64_t dim,          \
                       int64_t half, float sign, int64_t threads) {                                                    \
        PARALLEL for (int64_t t = 0; t < tokens; t++) {                                                                \
            const T *restrict c = cos + t * half, *restrict s = sin + t * half;                                        \
            for (int64_t h = 0; h < heads; h++) {                                                                      \
                const T *restrict from = x + (t * heads + h) * dim;                                                    \
                T *restrict to = out + (t * heads + h) * dim;                                                          \
                for (int64_t i = 0; i < half; i++) {                                                                   \
                    const float first = LOAD(from[i]), second = LOAD(from[half + i]);                                  \
                    const float cosine = LOAD(c[i]), sine = sign * LOAD(s[i]);                                         \
                    to[i] = STORE(first * cosine - second * sine);                                                     \
                    to[half + i] = STORE(second * cosine + first * sine);                                              \
                }                                                                                                      \
                for (int64_t i = 2 * half; i < dim; i++) to[i] = from[i];                                              \
            }                                                                                                          \
        }                                                                                                              \
    }

DEFINE(f32, float, from_float, to_float)
DEFINE(bf16, uint16_t, from_bf16, to_bf16)
