/* The product by a CPU's matrix tiles (AMX). 16 rows of w in place are one operand, 16 rows of x in pairs the other, so
 * that weights need no special layout, and few rows of x cost as much as 16. A result is one chain over strips of K,
 * independent of the neighbouring tiles. */
#ifndef RONDO_TILES_H
#define RONDO_TILES_H
#include "gemm/pairs.h"

/* Memory to prefetch: `lines` cache lines with each step over K. */
typedef struct {
    const char *at;
    int64_t lines;
} Next;

#ifdef HAS_TILES
/* Sums are in tiles 0 to 3, w in 4 and 5, x in 6 and 7: 16 lines of 64 bytes each. */
static void configure_tiles(void) {
    struct __attribute__((packed)) {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) config.bytes[tile] = 64, config.rows[tile] = SIDE;
    _tile_loadconfig(&config);
}

/* Tiles are read and written without the compiler's knowledge. */
#define SETTLE_MEMORY() __asm__ __volatile__("" ::: "memory")

/* 16 rows of w of K numbers, of which `count` exist. */
typedef struct {
    const uint16_t *w;
    int64_t K, count;
} Rows;

/* A strip of them from `k`: in place, or copied to `edge` with zeros for missing numbers. */
static inline const void *lines_of(const Rows *rows, int64_t k, uint16_t *edge, int64_t *apart) {
    const int64_t depth = least(STRIP, rows->K - k);
    *apart = rows->K * sizeof(uint16_t);
    if (rows->count == SIDE && depth == STRIP) return rows->w + k;
    memset(edge, 0, SIDE * STRIP * sizeof(uint16_t));
    for (int64_t r = 0; r < rows->count; r++) memcpy(edge + r * STRIP, rows->w + r * rows->K + k, depth * sizeof(uint16_t));
    SETTLE_MEMORY();
    *apart = STRIP * sizeof(uint16_t);
    return edge;
}

/* W groups of 16 rows of w by X tiles of x, which is read once for these rows; sums [W, X, 16, 16]. Each strip
 * prefetches lines of `next`. */
ALWAYS_INLINE void tiles_of(const Rows *rows, const float *x, int64_t tile, float *sums, Next *next, const int W, const int X) {
    uint16_t edges[2][SIDE * STRIP];
    const int64_t K = rows->K;
    int64_t apart;
    _tile_zero(0);
    if (X == 2) _tile_zero(1);
    if (W == 2) _tile_zero(2);
    if (W == 2 && X == 2) _tile_zero(3);
    for (int64_t k = 0; k < K; k += STRIP, x += SIDE * STRIP / 2) {
        for (int64_t i = 0; i < next->lines; i++, next->at += 64) __builtin_prefetch(next->at, 0, 2);
        const void *lines = lines_of(rows, k, edges[0], &apart);
        _tile_loadd(4, lines, apart);
        _tile_stream_loadd(6, x, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (X == 2) {
            _tile_stream_loadd(7, x + tile, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (W == 2) {
            lines = lines_of(rows + 1, k, edges[1], &apart);
            _tile_loadd(5, lines, apart);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (W == 2 && X == 2) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    if (X == 2) _tile_stored(1, sums + SIDE * SIDE, 64);
    if (W == 2) _tile_stored(2, sums + X * SIDE * SIDE, 64);
    if (W == 2 && X == 2) _tile_stored(3, sums + 3 * SIDE * SIDE, 64);
    SETTLE_MEMORY();
}

/* Like `product`; `sums` has room for four tiles. */
static void tiles_product(const float *packed, int64_t M, int64_t K, const uint16_t *w, int64_t from, int64_t to, float *out,
                          int64_t apart, float *sums) {
    const int64_t tile = strips(K) * STRIP / 2 * SIDE, steps = (M + 2 * SIDE - 1) / (2 * SIDE) * strips(K);
    configure_tiles();
    SETTLE_MEMORY();
    for (int64_t n = from, count; n < to && M > 0; n += count) {
        count = least(2 * SIDE, to - n);
        const Rows rows[2] = {{w + n * K, K, least(SIDE, count)}, {w + (n + SIDE) * K, K, count - SIDE}};
        const int W = count > SIDE ? 2 : 1;
        Next next = {(const char *)(w + (n + count) * K), (K + steps - 1) / steps}; /* 32 rows for any thread */
        for (int64_t m = 0; m < M; m += 2 * SIDE) {
            const float *x = packed + m / SIDE * tile;
            const int X = M - m > SIDE ? 2 : 1;
            if (W == 2 && X == 2) tiles_of(rows, x, tile, sums, &next, 2, 2);
            else if (W == 2) tiles_of(rows, x, tile, sums, &next, 2, 1);
            else if (X == 2) tiles_of(rows, x, tile, sums, &next, 1, 2);
            else tiles_of(rows, x, tile, sums, &next, 1, 1);
            for (int i = 0; i < W; i++)
                for (int j = 0; j < X; j++)
                    transpose(sums + (i * X + j) * SIDE * SIDE, rows[i].count, least(SIDE, M - m - j * SIDE), SIDE,
                              out + (m + j * SIDE) * apart + n - from + i * SIDE, apart);
        }
    }
    _tile_release();
}
#else
static void tiles_product(const float *packed, int64_t M, int64_t K, const uint16_t *w, int64_t from, int64_t to, float *out,
                          int64_t apart, float *sums) {
    (void)packed, (void)M, (void)K, (void)w, (void)from, (void)to, (void)out, (void)apart, (void)sums;
}
#endif
#endif
