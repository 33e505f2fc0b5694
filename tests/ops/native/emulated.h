/* The bf16 instructions of AVX-512 and AMX in plain C, as their maker describes them: fused multiply-adds, rounded to the
 * nearest even, denormals taken and given as zero. What is compiled with this runs on any CPU with AVX2. */
#ifndef EMULATED_H
#define EMULATED_H
#ifdef __x86_64__
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float flushed(float x) { return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x; }

static float part_of(uint32_t pair, int upper) {
    const uint32_t bits = upper ? pair & 0xffff0000u : pair << 16;
    float x;
    memcpy(&x, &bits, 4);
    return flushed(x);
}

static float fused_multiply_add(float a, float b, float c) { return flushed(fmaf(a, b, flushed(c))); }

/* VDPBF16PS: the upper numbers first. */
static void dot_pairs(float *sums, const uint32_t *a, const uint32_t *b, int lanes) {
    for (int i = 0; i < lanes; i++) {
        sums[i] = fused_multiply_add(part_of(a[i], 1), part_of(b[i], 1), sums[i]);
        sums[i] = fused_multiply_add(part_of(a[i], 0), part_of(b[i], 0), sums[i]);
    }
}

#ifdef EMULATE_DOTS
#define HAS_DOTS 1
typedef float Emulated __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t EmulatedPairs __attribute__((vector_size(64)));

static Emulated dots_of_sixteen(Emulated sum, EmulatedPairs a, EmulatedPairs b) {
    dot_pairs((float *)&sum, (uint32_t *)&a, (uint32_t *)&b, 16);
    return sum;
}

#define DOT_PAIRS(sum, a, b) dots_of_sixteen(sum, a, b)
#endif

#ifdef EMULATE_TILES
#define HAS_TILES 1
#define ASK_PERMISSION() 1
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} Config;
static _Thread_local Config config; /* the palette is 0 until it is loaded */
static _Thread_local uint32_t tiles[8][16][16];

static void must(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "tiles: %s\n", what);
    exit(1);
}

static void tile_loadconfig(const void *from) {
    memcpy(&config, from, sizeof config);
    must(sizeof config == 64 && config.palette == 1 && config.start == 0, "a wrong palette");
    for (int i = 0; i < 8; i++) must(config.rows[i] <= 16 && config.bytes[i] <= 64 && config.bytes[i] % 4 == 0, "a wrong size");
    memset(tiles, 0, sizeof tiles);
}

static void tile_release(void) { memset(&config, 0, sizeof config); }

static void tile_zero(int t) {
    must(config.palette, "no configuration");
    memset(tiles[t], 0, sizeof tiles[t]);
}

static void tile_loadd(int t, const void *from, int64_t apart) {
    tile_zero(t);
    for (int r = 0; r < config.rows[t]; r++) memcpy(tiles[t][r], (const char *)from + r * apart, config.bytes[t]);
}

static void tile_stored(int t, void *to, int64_t apart) {
    must(config.palette, "no configuration");
    for (int r = 0; r < config.rows[t]; r++) memcpy((char *)to + r * apart, tiles[t][r], config.bytes[t]);
}

/* TDPBF16PS: lower and upper numbers have sums of their own, which are added to what was there. */
static void tile_dpbf16ps(int c, int a, int b) {
    must(config.palette && config.rows[b] == config.bytes[a] / 4 && config.rows[c] == config.rows[a] && config.bytes[c] == config.bytes[b],
         "sizes that do not fit");
    for (int m = 0; m < config.rows[c]; m++)
        for (int n = 0; n < config.bytes[c] / 4; n++) {
            float lower = 0, upper = 0, was;
            for (int k = 0; k < config.bytes[a] / 4; k++) {
                lower = fused_multiply_add(part_of(tiles[a][m][k], 0), part_of(tiles[b][k][n], 0), lower);
                upper = fused_multiply_add(part_of(tiles[a][m][k], 1), part_of(tiles[b][k][n], 1), upper);
            }
            memcpy(&was, &tiles[c][m][n], 4);
            was = flushed(flushed(was) + flushed(lower + upper));
            memcpy(&tiles[c][m][n], &was, 4);
        }
}
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_stream_loadd
#undef _tile_dpbf16ps
#define _tile_loadconfig tile_loadconfig
#define _tile_release tile_release
#define _tile_zero tile_zero
#define _tile_loadd tile_loadd
#define _tile_stored tile_stored
#define _tile_stream_loadd tile_loadd
#define _tile_dpbf16ps tile_dpbf16ps
#endif
#endif
