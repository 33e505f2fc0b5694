/* Products of integers with many packed rows of x: a vector has two numbers of each row, or four if both factors have 8
 * bits. Rows of a weight are widened in the same way, one panel at a time, and each word of them is multiplied with all
 * rows at once. */
#ifndef RONDO_PANELS_H
#define RONDO_PANELS_H
#include "quantized/rounded.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef int32_t Words __attribute__((vector_size(4 * REGISTER_FLOATS), aligned(4), may_alias));

#if defined __AVX512BW__
#define PAIR_PRODUCTS(a, b) ((Words)_mm512_madd_epi16((__m512i)(a), (__m512i)(b)))
#elif defined __AVX2__
#define PAIR_PRODUCTS(a, b) ((Words)_mm256_madd_epi16((__m256i)(a), (__m256i)(b)))
#elif defined __SSE2__ && !defined __AVX__
#define PAIR_PRODUCTS(a, b) ((Words)_mm_madd_epi16((__m128i)(a), (__m128i)(b)))
#else
#define PAIR_PRODUCTS(a, b) (((a) << 16 >> 16) * ((b) << 16 >> 16) + ((a) >> 16) * ((b) >> 16))
#endif

ALWAYS_INLINE Words add_words(const int quads, Words sum, Words x, Words w) {
#ifdef HAS_QUADS
    return (Words)(quads ? _mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x) : _mm512_dpwssd_epi32((__m512i)sum, (__m512i)w, (__m512i)x));
#else
    (void)quads;
    return sum + PAIR_PRODUCTS(x, w);
#endif
}

/* c + a b, rounded once on every CPU. */
ALWAYS_INLINE Long multiply_add(Long a, Long b, Long c) {
#if defined __FMA__ || defined __aarch64__
    return MULTIPLY_ADD(a, b, c);
#else
    for (int i = 0; i < REGISTER_FLOATS; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

static const int8_t CODES[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Numbers of four bits, two a byte, mapped by a table, minus `zero`. */
ALWAYS_INLINE void spread_codes(const uint8_t *restrict from, int64_t count, const int8_t *table, int16_t zero, int16_t *restrict to) {
    int64_t i = 0;
#if defined __AVX512BW__
    const __m512i all = _mm512_sub_epi16(_mm512_castsi256_si512(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)table))), _mm512_set1_epi16(zero));
    for (; i + 16 <= count; i += 16) {
        const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(from + i)));
        const __m512i codes = _mm512_and_si512(_mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12)), _mm512_set1_epi32(0x000f000f));
        _mm512_storeu_si512(to + 2 * i, _mm512_permutexvar_epi16(codes, all));
    }
#elif defined __AVX2__
    const __m128i all = _mm_loadu_si128((const __m128i *)table), each = _mm_set1_epi8(0x0f);
    const __m256i off = _mm256_set1_epi16(zero);
    for (; i + 16 <= count; i += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(from + i));
        const __m128i low = _mm_shuffle_epi8(all, _mm_and_si128(bytes, each));
        const __m128i high = _mm_shuffle_epi8(all, _mm_and_si128(_mm_srli_epi16(bytes, 4), each));
        _mm256_storeu_si256((__m256i *)(to + 2 * i), _mm256_sub_epi16(_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(low, high)), off));
        _mm256_storeu_si256((__m256i *)(to + 2 * i + 16), _mm256_sub_epi16(_mm256_cvtepi8_epi16(_mm_unpackhi_epi8(low, high)), off));
    }
#endif
    for (; i < count; i++) to[2 * i] = (int16_t)(table[from[i] & 15] - zero), to[2 * i + 1] = (int16_t)(table[from[i] >> 4] - zero);
}

/* Row n in words with as many numbers as in x: with four in a word, 128 is added to each. */
static void spread_row(const Weight *w, int64_t K, int64_t n, void *to) {
    const uint8_t *from = (const uint8_t *)w->data + n * bytes_of(w->kind, K);
    int16_t *numbers = to;
    if (has_quads(w))
        for (int64_t k = 0; k < K; k++) ((uint8_t *)to)[k] = from[k] ^ 0x80;
    else if (w->kind == INT8)
        for (int64_t k = 0; k < K; k++) numbers[k] = (int8_t)from[k];
    else if (w->kind == MXFP4) spread_codes(from, K / 2, E2M1, 0, numbers);
    else
        for (int64_t k = 0, at = scale_index(w, K, n); k < K; k += w->group, at++)
            spread_codes(from + k / 2, w->group / 2, CODES, w->zeros ? w->zeros[at] : 8, numbers + k);
    for (int64_t k = K; k % each_of(w); k++)
        if (has_quads(w)) ((uint8_t *)to)[k] = 0;
        else numbers[k] = 0;
}

typedef struct {
    int32_t *words;
    float *scales;
    int64_t wide, groups;
} Panel;

/* Words of a row in a panel, padded: rows a power of two apart would conflict in the cache. */
static inline int64_t panel_wide(int64_t K) { return wide_of(K) / 2 + 16; }
static inline int64_t panel_room(int64_t K) { return PANEL * (panel_wide(K) + K); }

/* `count` rows from n; `room` has the size of a whole panel. */
static Panel panel_at(const Weight *w, int64_t K, int64_t n, int64_t count, float *room) {
    const Panel panel = {(int32_t *)room, room + PANEL * panel_wide(K), panel_wide(K), K / w->group};
    for (int64_t c = 0; c < count; c++) {
        const int64_t at = scale_index(w, K, n + c);
        spread_row(w, K, n + c, panel.words + c * panel.wide);
        for (int64_t g = 0; g < panel.groups; g++)
            panel.scales[c * panel.groups + g] = scale_at(w, at + g) * (w->kind == MXFP4 ? 0.5f : 1.0f);
    }
    return panel;
}

/* out [C, V vectors]: rows of x from m, times columns of the panel from `first`. */
ALWAYS_INLINE void panel_tile(const Weight *w, Rounded x, int64_t m, int64_t K, Panel panel, int64_t first, float *out,
                              const int quads, const int V, const int C) {
    const int64_t span = span_of(w), each = quads ? 4 : 2, apart = REGISTER_FLOATS * x.wide / 2;
    const int32_t *rows = (const int32_t *)(x.numbers + m * x.wide), *words = panel.words + first * panel.wide;
    const float *scales = panel.scales + first * panel.groups;
    Long acc[PANEL][2];
#pragma GCC unroll 16
    for (int c = 0; c < C; c++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) acc[c][v] = (Long){0};
    int64_t p = m * x.pieces;
    for (int64_t group = 0, g = 0; group < K; group += w->group, g++)
        for (int64_t at = group, to; at < group + w->group; at = to, p += REGISTER_FLOATS) {
            to = least(at + span, group + w->group);
            Words sum[PANEL][2];
            Long by[2];
#pragma GCC unroll 2
            for (int v = 0; v < V; v++) {
                by[v] = *(const Long *)(x.scales + p + v * REGISTER_FLOATS * x.pieces);
                const Words begin = *(const Words *)(x.sums + p + v * REGISTER_FLOATS * x.pieces) * (quads ? -128 : 0);
#pragma GCC unroll 16
                for (int c = 0; c < C; c++) sum[c][v] = begin;
            }
            for (int64_t k = at / each; k < (to + each - 1) / each; k++) {
                Words own[2];
#pragma GCC unroll 2
                for (int v = 0; v < V; v++) {
                    own[v] = *(const Words *)(rows + v * apart + k * REGISTER_FLOATS);
                    HOLD(own[v]);
                }
#pragma GCC unroll 16
                for (int c = 0; c < C; c++) {
                    const Words all = words[c * panel.wide + k] - (Words){0};
#pragma GCC unroll 2
                    for (int v = 0; v < V; v++) sum[c][v] = add_words(quads, sum[c][v], own[v], all);
                }
            }
#pragma GCC unroll 16
            for (int c = 0; c < C; c++)
#pragma GCC unroll 2
                for (int v = 0; v < V; v++) {
                    const Long found = __builtin_convertvector(sum[c][v], Long);
                    const float scale = scales[c * panel.groups + g];
                    if (w->whole) acc[c][v] = found * by[v] * scale;
                    else acc[c][v] = multiply_add(found, by[v] * scale, acc[c][v]);
                }
        }
#pragma GCC unroll 16
    for (int c = 0; c < C; c++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) *(Long *)(out + (c * V + v) * REGISTER_FLOATS) = acc[c][v];
}

ALWAYS_INLINE void panel_rows(const Weight *w, Rounded x, int64_t m, int64_t K, Panel panel, int64_t count, float *tile,
                              const int quads, const int V) {
    const int broad = V == 2 ? NR : PANEL;
    int64_t c = 0;
    for (; c + broad <= count; c += broad) panel_tile(w, x, m, K, panel, c, tile + c * V * REGISTER_FLOATS, quads, V, broad);
    for (; c + 4 <= count; c += 4) panel_tile(w, x, m, K, panel, c, tile + c * V * REGISTER_FLOATS, quads, V, 4);
    for (; c < count; c++) panel_tile(w, x, m, K, panel, c, tile + c * V * REGISTER_FLOATS, quads, V, 1);
}

static void panels_product(const Weight *w, Rounded x, int64_t M, int64_t K, int64_t from, int64_t to, float *out, int64_t apart,
                           float *room) {
    float tile[PANEL * 2 * REGISTER_FLOATS];
    const int64_t bytes = bytes_of(w->kind, K);
    for (int64_t n = from, count; n < to; n += count) {
        count = least(PANEL, to - n);
        const Panel panel = panel_at(w, K, n, count, room);
        for (int64_t i = 0; i < count * bytes; i += 64) __builtin_prefetch((const char *)w->data + (n + count) * bytes + i, 0, 2);
        for (int64_t m = 0; m < M; m += 2 * REGISTER_FLOATS) {
            const int V = vectors_at(m, M);
            if (V == 2)
                if (has_quads(w)) panel_rows(w, x, m, K, panel, count, tile, 1, 2);
                else panel_rows(w, x, m, K, panel, count, tile, 0, 2);
            else if (has_quads(w)) panel_rows(w, x, m, K, panel, count, tile, 1, 1);
            else panel_rows(w, x, m, K, panel, count, tile, 0, 1);
            transpose(tile, count, least(2 * REGISTER_FLOATS, M - m), V * REGISTER_FLOATS, out + m * apart + n - from, apart);
        }
    }
}
#endif
