/* Products by a CPU's bf16 instructions. All of them use numbers of K two at a time, so rows of x are packed in pairs;
 * x is then exact in bf16, its type in the model. All of them treat numbers below 2^-126 as 0.
 *
 * TILES (AMX) multiply 16 rows of w by 16 of x over 32 of K at once; DOTS (AVX-512 BF16) a vector of pairs. Each has
 * its own order of sums, so one kind of tile serves few rows and many: a result is the same for any number of them. K
 * is a multiple of 16.
 */
#ifndef RONDO_PAIRS_H
#define RONDO_PAIRS_H
#include "gemm/transpose.h"

#if defined __AMX_TILE__ && defined __AMX_BF16__ && defined __linux__
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_TILES 1
#define ASK_PERMISSION() (syscall(SYS_arch_prctl, 0x1023, 18) == 0) /* ARCH_REQ_XCOMP_PERM for the tiles' data */
#endif
#if defined __AVX512BF16__ && defined __AVX512VL__
#define HAS_DOTS 1
#define DOT_PAIRS(sum, a, b) ((Wide)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(a), (__m512bh)(b)))
#endif

typedef float Wide __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t Pairs __attribute__((vector_size(64)));

enum { SIDE = 16, STRIP = 32 }; /* rows and columns of a tile; numbers of K in one */

typedef enum { BY_FLOATS, BY_DOTS, BY_TILES } Way;

/* The way in which weights of a type are multiplied. Tiles need permission of the system, once a process, which may be
 * denied. */
static inline Way way_of(int64_t type) {
    static int ways[2]; /* known, allowed; concurrent requests have the same result */
    if (type != BF16) return BY_FLOATS;
#ifdef HAS_TILES
    if (!__atomic_load_n(ways, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(ways + 1, ASK_PERMISSION(), __ATOMIC_RELAXED);
        __atomic_store_n(ways, 1, __ATOMIC_RELEASE);
    }
    if (ways[1]) return BY_TILES;
#endif
    (void)ways;
#ifdef HAS_DOTS
    return BY_DOTS;
#else
    return BY_FLOATS;
#endif
}

static inline int64_t strips(int64_t K) { return (K + STRIP - 1) / STRIP; }

/* packed [tiles of 16 rows, strips of K, 16 pairs, 16 rows], with zeros for missing rows: a piece of K numbers of rows
 * `apart` from one another, where tiles are `deep` pairs. */
static void pack_piece(const float *x, int64_t apart, int64_t M, int64_t K, float *packed, int64_t deep) {
    float pairs[SIDE * STRIP / 2];
    for (int64_t m = 0; m < M; m += SIDE, packed += deep * SIDE) {
        const int64_t rows = least(SIDE, M - m);
        if (rows < SIDE) memset(packed, 0, K / 2 * SIDE * sizeof(float));
        for (int64_t k = 0, count; k < K; k += count) {
            count = least(STRIP, K - k);
            for (int64_t r = 0; r < rows; r++) narrow(BF16, x + (m + r) * apart + k, pairs, r * count, count);
            transpose(pairs, rows, count / 2, count / 2, packed + k / 2 * SIDE, SIDE);
        }
    }
}

/* Zeros fill the last strip beyond K. */
static void end_strip(int64_t M, int64_t K, float *packed) {
    const int64_t deep = strips(K) * STRIP / 2;
    for (int64_t m = 0; m < M && 2 * deep > K; m += SIDE, packed += deep * SIDE)
        memset(packed + K / 2 * SIDE, 0, (deep - K / 2) * SIDE * sizeof(float));
}

static void pack_pairs(const float *x, int64_t M, int64_t K, float *packed) {
    pack_piece(x, K, M, K, packed, strips(K) * STRIP / 2);
    end_strip(M, K, packed);
}
#endif
