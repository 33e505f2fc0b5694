/* x [rows, in] times the transpose of weight [width, in], plus bias [width]; all of one type, fp32 or bf16, and rounded once.
 *
 * It is the product of `layers.c`, and so to the bit: a row's results know neither its neighbours nor the threads. Many rows
 * are shared out among threads, each of which goes through them in blocks that stay near; of few, threads share the columns.
 */
#include <omp.h>
#include <time.h>

#include "product.h"
#include "shares.h"

typedef struct {
    const void *x, *weight, *bias;
    void *out;
    float *memory;
    double *seconds; /* of each thread, those that it had for itself; or NULL */
    int64_t rows, in, width, type, threads;
    int64_t few;     /* rows a thread, below which columns are shared */
    int64_t columns; /* that are made at a time where they are rounded */
} Args;

/* Floats of a block of rows that stay in a core's own cache. */
enum { NEAR = 1 << 16 };

static inline int64_t block_of(const Args *a) {
    const int64_t rows = NEAR / a->in / (2 * LONG) * (2 * LONG);
    return least(a->rows, most(rows, 2 * LONG));
}

static inline int64_t columns_of(const Args *a) { return a->type == F32 ? a->width : least(a->width, a->columns); }

static inline int64_t packed_size(const Args *a) { return rounded(packed_rows(block_of(a)) * a->in); }

static inline int64_t results_size(const Args *a) { return a->type == F32 ? 0 : rounded(block_of(a) * columns_of(a)); }

static inline int64_t own_size(const Args *a) {
    return (a->type == F32 ? 1 : 2) * packed_size(a) + results_size(a) + rounded(product_room(block_of(a), a->in));
}

/* How many floats `memory` must have. */
int64_t linear_memory(const Args *a) { return a->threads * own_size(a); }

static inline void add_bias(const Args *a, float *restrict row, int64_t from, int64_t to) {
    if (a->type == F32)
        for (int64_t n = from; n < to; n++) row[n - from] += ((const float *)a->bias)[n];
    else
        for (int64_t n = from; n < to; n++) row[n - from] += from_bf16(((const uint16_t *)a->bias)[n]);
}

/* Rows `first` to `last`, columns `from` to `to`. */
static void part(const Args *a, int64_t first, int64_t last, int64_t from, int64_t to, float *memory) {
    const int64_t K = a->in, size = block_of(a), columns = columns_of(a);
    float *packed = memory, *wide = packed + packed_size(a), *results = wide + (a->type == F32 ? 0 : packed_size(a));
    float *room = results + results_size(a);
    for (int64_t r = first, rows; r < last; r += rows) {
        rows = least(size, last - r);
        if (a->type != F32) widen(a->type, a->x, r * K, wide, rows * K);
        pack(a->type, a->type == F32 ? (const float *)a->x + r * K : wide, rows, K, packed);
        for (int64_t n = from, end; n < to; n = end) {
            end = least(n + columns, to);
            const int64_t apart = a->type == F32 ? a->width : end - n;
            float *out = a->type == F32 ? (float *)a->out + r * a->width + n : results;
            product(a->type, packed, rows, K, a->weight, n, end, out, apart, room);
            for (int64_t i = 0; i < rows; i++) {
                if (a->bias) add_bias(a, out + i * apart, n, end);
                if (a->type != F32) narrow(a->type, out + i * apart, a->out, (r + i) * a->width + n, end - n);
            }
        }
    }
}

/* Not those in which others had the core. */
static double own_seconds(void) {
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) ? 0 : (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void linear(const Args *a) {
#pragma omp parallel num_threads(a->threads) if (a->threads > 1)
    {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        float *memory = a->memory + thread * own_size(a);
        const double start = a->seconds ? own_seconds() : 0;
        if (threads > 1 && a->rows < a->few * threads)
            part(a, 0, a->rows, share(a->width, UNIT, thread, threads), share(a->width, UNIT, thread + 1, threads), memory);
        else part(a, share(a->rows, LONG, thread, threads), share(a->rows, LONG, thread + 1, threads), 0, a->width, memory);
        if (a->seconds) a->seconds[thread] = own_seconds() - start;
    }
}
