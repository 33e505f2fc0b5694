/* Division of work among threads: either by rows, each share through all columns, or by columns. A thread takes one
 * share after another, so that the others take over the work of a preempted thread. */
#ifndef RONDO_SHARES_H
#define RONDO_SHARES_H
#include "build/vectors.h"

/* Rows a thread below which columns are shared instead; columns that are never split. */
enum { FEW = 12, UNIT = 16 };
/* Numbers of a weight in one share: about 100 us with few rows. Weights with fewer than LARGE numbers a thread are
 * small. */
enum { GRAIN = 1 << 21, LARGE = 1 << 19 };

static inline int shares_columns(int64_t rows, int64_t threads) { return threads > 1 && rows < FEW * threads; }

/* Start of a part's share of `count` things in groups of `unit`; the last group is partial. The first part starts at 0,
 * and the end of the last part is `count`. Columns are in groups of the longest vector, so that no loop ends in the
 * middle of one. */
static inline int64_t share(int64_t count, int64_t unit, int64_t part, int64_t parts) {
    return least(count, (count + unit - 1) / unit * part / parts * unit);
}

/* Number of shares of `units` that read `numbers` of a weight: a multiple of the threads. */
static inline int64_t shares_of(int64_t units, int64_t numbers, int64_t threads) {
    return least(units, threads * most(1, numbers / GRAIN / threads));
}

/* Number of shares of at most `block` things each: a multiple of the threads. */
static inline int64_t blocks_of(int64_t count, int64_t block, int64_t threads) {
    return threads * most(1, (count + threads * block - 1) / (threads * block));
}

/* Rounds up so that the following memory starts at a cache line. */
static inline int64_t rounded(int64_t floats) { return (floats + 15) / 16 * 16; }
#endif
