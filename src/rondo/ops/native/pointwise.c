/* The small operations between matrix products, each in one pass over its rows: RMSNorm, SwiGLU and rotation, with
 * their backward passes. Numbers are read and written as fp32 or bf16 and computed in fp32.
 *
 * A row's arithmetic depends on the row alone, and sums over rows are made in blocks of a fixed size, so results change
 * neither with the batch nor with the number of threads.
 */
#include "vectors.h"

#define PARALLEL _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
#define IN(T) const T *restrict
#define OUT(T) T *restrict
#define STRIDE 4096 /* numbers of an elementwise operation that one task does */

ALWAYS_INLINE float from_float(float x) { return x; }
ALWAYS_INLINE float to_float(float x) { return x; }

/* Adds what `TERM` is of each i below n to lanes: the compiler sees vectors, and sums keep their order. */
#define IN_LANES(SUMS, TERM)                                                                                           \
    for (int64_t at = 0; at < n / LANES * LANES; at += LANES)                                                          \
        for (int64_t lane = 0, i = at; lane < LANES; lane++, i++) SUMS[lane] += TERM;                                  \
    for (int64_t i = n / LANES * LANES; i < n; i++) SUMS[i % LANES] += TERM;

#define DEFINE(TYPE, T, LOAD, STORE)                                                                                   \
    void rms_norm_##TYPE(IN(T) x, IN(T) weight, OUT(T) out, OUT(float) inverse, int64_t rows, int64_t n, float eps,    \
                         float offset, int64_t threads) {                                                              \
        PARALLEL for (int64_t row = 0; row < rows; row++) {                                                            \
            const T *restrict from = x + row * n;                                                                      \
            T *restrict to = out + row * n;                                                                            \
            float squares[LANES] = {0};                                                                                \
            IN_LANES(squares, LOAD(from[i]) * LOAD(from[i]))                                                           \
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
                IN_LANES(dots, LOAD(g[i]) * (LOAD(weight[i]) + offset) * LOAD(from[i]))                                \
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
    void swiglu_##TYPE(IN(T) gate, IN(T) up, OUT(T) out, int64_t n, int64_t threads) {                                 \
        PARALLEL for (int64_t at = 0; at < n; at += STRIDE) {                                                          \
            const int64_t last = at + STRIDE < n ? at + STRIDE : n;                                                    \
            for (int64_t i = at; i < last; i++)                                                                        \
                out[i] = STORE(LOAD(gate[i]) * sigmoid(LOAD(gate[i])) * LOAD(up[i]));                                  \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    void swiglu_backward_##TYPE(IN(T) grad, IN(T) gate, IN(T) up, OUT(T) grad_gate, OUT(T) grad_up, int64_t n,         \
                                int64_t threads) {                                                                     \
        PARALLEL for (int64_t at = 0; at < n; at += STRIDE) {                                                          \
            const int64_t last = at + STRIDE < n ? at + STRIDE : n;                                                    \
            for (int64_t i = at; i < last; i++) {                                                                      \
                const float g = LOAD(grad[i]), x = LOAD(gate[i]), y = sigmoid(x);                                      \
                grad_gate[i] = STORE(g * LOAD(up[i]) * y * (1.0f + x * (1.0f - y)));                                   \
                grad_up[i] = STORE(g * x * y);                                                                         \
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
