/* What threads share: either rows, each share of them through all columns, or columns. A thread takes one share after another:
 * so one that has no core for a while leaves the others its work. */
#ifndef RONDO_SHARES_H
#define RONDO_SHARES_H
#include "build/vectors.h"

/* So few rows a thread that columns are shared instead; columns that are never parted. */
enum { FEW = 12, UNIT = 16 };
/* Numbers of a weight that are a share: of few rows some 100 us. Weights of fewer than LARGE for each thread are small. */
enum { GRAIN = 1 << 21, LARGE = 1 << 19 };

static inline int shares_columns(int64_t rows, int64_t threads) { return threads > 1 && rows < FEW * threads; }

/* Where a part's share of `count` things in groups of `unit` begins, the last group with what is left over: the first part's
 * at 0, and that after the last part's at `count`. Columns come in groups of the longest vector: so no loop ends where
 * another thread's would go on. */
static inline int64_t share(int64_t count, int64_t unit, int64_t part, int64_t parts) {
    return least(count, (count + unit - 1) / unit * part / parts * unit);
}

/* How many shares `units` are that meet `numbers` of a weight: as many for each thread. */
static inline int64_t shares_of(int64_t units, int64_t numbers, int64_t threads) {
    return least(units, threads * most(1, numbers / GRAIN / threads));
}

/* How many shares things are of which one takes up to `block`: as many for each thread. */
static inline int64_t blocks_of(int64_t count, int64_t block, int64_t threads) {
    return threads * most(1, (count + threads * block - 1) / (threads * block));
}

/* So that whatever comes next in memory begins a cache line. */
static inline int64_t rounded(int64_t floats) { return (floats + 15) / 16 * 16; }
#endif
