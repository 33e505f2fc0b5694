/* Peak arithmetic of the cores with all numbers in registers: as many independent sums as in a product's tile, so that
 * none waits for another, by the instructions of that product. This is an upper bound, because a product also reads
 * numbers. */
#include <omp.h>

#include "quantized/panels.h"
#include "gemm/product.h"
#include "build/seconds.h"

/* Kinds of numbers: fp32, bf16, 16 bits, 8 bits. */
enum { FLOATS, HALVES, SHORTS, OCTETS };
/* Number of independent chains of vectors, and of tiles. */
enum { CHAINS = 2 * NR, TILE_CHAINS = 6 };
/* Ones, so that a lane's sum is the number of products added to it. */
enum { BF16_ONES = 0x3f803f80, SHORT_ONES = 0x00010001, OCTET_ONES = BY_BYTES ? 0x01010101 : SHORT_ONES };

/* A turn adds a product to each chain. For the compiler x is another value each time, so that no product is optimized
 * away. */
#define TURNS(NAME, SUM, X, ONES, CHANGE, ADDED)                                                                       \
    static float NAME(int64_t turns) {                                                                                 \
        SUM sum[CHAINS];                                                                                               \
        X x = (ONES) - (X){0}, w = x;                                                                                  \
        for (int i = 0; i < CHAINS; i++) sum[i] = (SUM){0};                                                            \
        for (; turns > 0; turns--)                                                                                     \
            _Pragma("GCC unroll 24") for (int i = 0; i < CHAINS; i++) {                                                \
                CHANGE;                                                                                                \
                sum[i] = ADDED;                                                                                        \
            }                                                                                                          \
        for (int i = 1; i < CHAINS; i++) sum[0] += sum[i];                                                             \
        return (float)sum[0][0];                                                                                       \
    }

TURNS(add_floats, Long, Long, 1.0f, HOLD(x), MULTIPLY_ADD(x, w, sum[i]))
TURNS(add_shorts, Words, Words, SHORT_ONES, HOLD(x), add_words(0, sum[i], x, w))
TURNS(add_octets, Words, Words, OCTET_ONES, HOLD(x), add_words(1, sum[i], x, w))
#ifdef HAS_DOTS
TURNS(add_dots, Wide, Pairs, (uint32_t)BF16_ONES, (void)0, DOT_PAIRS(sum[i], x, w))
#endif

#ifdef HAS_TILES
static float add_tiles(int64_t turns) {
    uint32_t lines[SIDE * SIDE];
    float sums[SIDE * SIDE];
    for (int i = 0; i < SIDE * SIDE; i++) lines[i] = BF16_ONES;
    configure_tiles();
    SETTLE_MEMORY();
#define EACH(DO) { DO(0); DO(1); DO(2); DO(3); DO(4); DO(5); }
#define ADD(SUM) _tile_dpbf16ps(SUM, 6, 7)
    EACH(_tile_zero)
    _tile_loadd(6, lines, 64);
    _tile_loadd(7, lines, 64);
    for (; turns > 0; turns--) EACH(ADD)
#undef ADD
#undef EACH
    _tile_stored(0, sums, 64);
    SETTLE_MEMORY();
    _tile_release();
    return sums[0] * TILE_CHAINS;
}
#endif

typedef struct {
    float (*turn)(int64_t turns);
    int64_t products; /* of a turn */
} Unit;

static Unit halves(void) {
#ifdef HAS_TILES
    if (way_of(BF16) == BY_TILES) return (Unit){add_tiles, TILE_CHAINS * SIDE * SIDE * STRIP};
#endif
#ifdef HAS_DOTS
    return (Unit){add_dots, CHAINS * SIDE * 2};
#else
    return (Unit){add_floats, CHAINS * REGISTER_FLOATS};
#endif
}

static Unit unit_of(int64_t what) {
    switch (what) {
    case HALVES: return halves();
    case SHORTS: return (Unit){add_shorts, CHAINS * REGISTER_FLOATS * 2};
    case OCTETS: return (Unit){add_octets, CHAINS * REGISTER_FLOATS * (BY_BYTES ? 4 : 2)};
    default: return (Unit){add_floats, CHAINS * REGISTER_FLOATS};
    }
}

/* Number of products by all threads after `turns` each. For each thread: the sum of a lane, and its CPU time in seconds. */
int64_t multiply(int64_t what, int64_t turns, int64_t threads, float *lanes, double *seconds) {
    const Unit unit = unit_of(what);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int64_t thread = omp_get_thread_num();
        const double start = own_seconds();
        lanes[thread] = unit.turn(turns);
        seconds[thread] = own_seconds() - start;
    }
    return threads * turns * unit.products;
}
