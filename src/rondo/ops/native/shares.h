/* What threads share: either rows, each thread with a share of them through all columns, or columns. */
#ifndef RONDO_SHARES_H
#define RONDO_SHARES_H
#include "vectors.h"

/* So few rows a thread that columns are shared instead; columns that are never parted. */
enum { FEW = 12, UNIT = 16 };

static inline int shares_columns(int64_t rows, int64_t threads) { return threads > 1 && rows < FEW * threads; }

/* Where a part's share of `count` things in groups of `unit` begins, the last group with what is left over: the first part's
 * at 0, and that after the last part's at `count`. Columns come in groups of the longest vector: so no loop ends where
 * another thread's would go on. */
static inline int64_t share(int64_t count, int64_t unit, int64_t part, int64_t parts) {
    return least(count, (count + unit - 1) / unit * part / parts * unit);
}

/* So that whatever comes next in memory begins a cache line. */
static inline int64_t rounded(int64_t floats) { return (floats + 15) / 16 * 16; }
#endif
