/* x [rows, in] times the transpose of weight [width, in], plus bias [width]; all of one type, fp32 or bf16, and rounded
 * once.
 *
 * It is the product of `layers.c`, bitwise equal: a row's results do not depend on its neighbours or the threads.
 * Threads share many rows in blocks that stay in the cache; with few rows, they share the columns.
 */
#include <omp.h>

#include "gemm/product.h"
#include "build/seconds.h"
#include "build/shares.h"

typedef struct {
    const void *x, *weight, *bias;
    void *out;
    float *memory;
    double *seconds; /* CPU time of each thread, or NULL */
    int64_t rows, in, width, type, threads;
    int64_t few;     /* rows a thread, below which columns are shared */
    int64_t columns; /* computed at a time if results are rounded */
} Args;

/* Floats of a block of rows that stay in a core's L2 cache. Tiles are so fast that more rows must be multiplied with a
 * weight. */
enum { L2_FLOATS = 1 << 16 };

static inline int64_t block_of(const Args *a) {
    const int64_t near = a->type == BF16 && way_of(BF16) == BY_TILES ? 4 * L2_FLOATS : L2_FLOATS, rows = near / a->in / (2 * REGISTER_FLOATS) * (2 * REGISTER_FLOATS);
    return least(a->rows, most(rows, 2 * REGISTER_FLOATS));
}

static inline int64_t columns_of(const Args *a) { return a->type == F32 ? a->width : least(a->width, a->columns); }

static inline int64_t packed_size(const Args *a) { return rounded(packed_rows(block_of(a)) * a->in); }

static inline int64_t results_size(const Args *a) { return a->type == F32 ? 0 : rounded(block_of(a) * columns_of(a)); }

static inline int64_t own_size(const Args *a) {
    return (a->type == F32 ? 1 : 2) * packed_size(a) + results_size(a) + rounded(product_room(block_of(a)));
}

/* Number of floats in `memory`. */
int64_t linear_memory(const Args *a) { return a->threads * own_size(a); }

static inline void add_bias(const Args *a, float *restrict row, int64_t from, int64_t to) {
    if (a->type == F32)
        for (int64_t n = from; n < to; n++) row[n - from] += ((const float *)a->bias)[n];
    else
        for (int64_t n = from; n < to; n++) row[n - from] += from_bf16(((const uint16_t *)a->bias)[n]);
}

/* A thread's memory; `ready` is the first of the rows packed there, or -1. */
typedef struct {
    float *memory;
    int64_t ready;
} Own;

/* Packs rows from r, unless they are packed already. */
static void make_ready(const Args *a, Own *own, int64_t r, int64_t rows) {
    const int64_t K = a->in;
    float *packed = own->memory, *wide = packed + packed_size(a);
    if (own->ready == r) return;
    if (a->type != F32) widen(a->type, a->x, r * K, wide, rows * K);
    pack(a->type, a->type == F32 ? (const float *)a->x + r * K : wide, rows, K, packed);
    own->ready = r;
}

/* Rows `first` to `last`, columns `from` to `to`. */
static void part(const Args *a, int64_t first, int64_t last, int64_t from, int64_t to, Own *own) {
    const int64_t K = a->in, size = block_of(a), columns = columns_of(a);
    float *packed = own->memory, *results = packed + (a->type == F32 ? 1 : 2) * packed_size(a), *room = results + results_size(a);
    for (int64_t r = first, rows; r < last; r += rows) {
        rows = least(size, last - r);
        make_ready(a, own, r, rows);
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

/* A thread's next share. When its time is measured, each thread has the same number of shares, independent of load. */
static inline int64_t take(const Args *a, int64_t thread, int64_t turn, int64_t *taken) {
    return a->seconds ? turn * omp_get_num_threads() + thread : __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED);
}

void linear(const Args *a) {
    const int columns = a->threads > 1 && a->rows < a->few * a->threads;
    const int64_t shares = columns ? shares_of((a->width + UNIT - 1) / UNIT, a->width * a->in, a->threads)
                                   : blocks_of(a->rows, block_of(a), a->threads);
    int64_t taken = 0;
#pragma omp parallel num_threads(a->threads) if (a->threads > 1)
    {
        const int64_t thread = omp_get_thread_num();
        const double start = a->seconds ? own_seconds() : 0;
        Own own = {a->memory + thread * own_size(a), -1};
        for (int64_t turn = 0, i; (i = take(a, thread, turn, &taken)) < shares; turn++) {
            if (columns) part(a, 0, a->rows, share(a->width, UNIT, i, shares), share(a->width, UNIT, i + 1, shares), &own);
            else part(a, share(a->rows, REGISTER_FLOATS, i, shares), share(a->rows, REGISTER_FLOATS, i + 1, shares), 0, a->width, &own);
        }
        if (a->seconds) a->seconds[thread] = own_seconds() - start;
    }
}
