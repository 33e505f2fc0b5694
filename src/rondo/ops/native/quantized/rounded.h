/* Conversion of rows of x to integers. */
#ifndef RONDO_ROUNDED_H
#define RONDO_ROUNDED_H
#include "quantized/weights.h"

#if defined __AVX512VNNI__ && defined __AVX512BW__
#define HAS_QUADS 1
enum { BY_BYTES = 1 };
static inline int has_quads(const Weight *w) { return w->whole != 0; }
#else
enum { BY_BYTES = 0 };
static inline int has_quads(const Weight *w) { return 0 * (w->whole != 0); }
#endif

/* More rows than SOME are many: see `panels.h`. */
#if defined HAS_QUADS
enum { SOME = 6 };
#elif defined __AVX2__ && defined __FMA__
enum { SOME = 8 };
#else
enum { SOME = 0 };
#endif

/* Few rows as bytes: see `bytes.h`. Number of pieces in a chunk, if more than one, and bytes of x for one. */
enum { CHUNK = 4 * BYTES };

static inline int64_t pieces_in_chunk(const Weight *w, int64_t K) {
    const int64_t bytes = bytes_of(w->kind, w->group);
    return w->group < K && (bytes == BYTES || bytes == 2 * BYTES) ? CHUNK / bytes : 1;
}

static inline int64_t numbers_in_chunk(const Weight *w) { return CHUNK * (w->whole ? 1 : w->kind == INT8 ? 2 : 4); }

static inline int64_t chunks_of(const Weight *w, int64_t K) {
    const int64_t alone = pieces_in_chunk(w, K) == 1, bytes = bytes_of(w->kind, alone ? w->group : K);
    return (alone ? K / w->group : 1) * ((bytes + CHUNK - 1) / CHUNK);
}

/* Numbers in a word of many rows. */
static inline int64_t each_of(const Weight *w) { return has_quads(w) ? 4 : 2; }

/* Rows of x as integers, interleaved within a tile; the scale of each piece, and its sum. Numbers of few rows are in
 * the order in which a weight's numbers are unpacked from its bytes; with many rows, words of the rows alternate. */
typedef struct {
    int16_t *numbers;
    float *scales;
    int32_t *sums;
    int64_t wide, pieces, many;
} Rounded;

static inline int64_t wide_of(int64_t K) { return least_up(K, CHUNK); }

/* Number of rows of x in the next tile, of the `rows` left. */
static inline int64_t tile_of(Rounded x, int64_t rows) { return x.many ? REGISTER_FLOATS : BY_BYTES ? 1 : rows >= 4 ? 4 : rows >= 2 ? 2 : 1; }

static Rounded rounded_in(const Weight *w, int64_t M, int64_t K, void *memory) {
    const int64_t pieces = pieces_of(w, K), many = M > SOME, rows = many ? least_up(M, REGISTER_FLOATS) : M;
    const int64_t wide = many || !BY_BYTES ? wide_of(K) : chunks_of(w, K) * numbers_in_chunk(w) / 2;
    int16_t *numbers = memory;
    float *scales = (float *)(numbers + rows * wide);
    return (Rounded){numbers, scales, (int32_t *)(scales + rows * pieces), wide, pieces, many};
}

/* Rounds a piece; a non-finite piece becomes zeros with a non-finite scale. */
static void round_piece(float *restrict x, int64_t count, int whole, float *scale) {
    if (whole) {
        *scale = scale_row(x, count, 127.0f, (float)(1.0 / 127.0));
        for (int64_t i = 0; i < count; i++) x[i] = rintf(x[i]);
        return;
    }
    int32_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        const int32_t size = (int32_t)(as_bits(x[i]) & 0x7fffffff);
        most = size > most ? size : most;
    }
    const float found = as_float((uint32_t)most);
    /* The inverse of a smaller maximum would not be finite. */
    const float top = found < 0x1p-100f ? 0x1p-100f : found, inverse = found < INFINITY ? LARGEST / top : 0;
    *scale = top * (1.0f / LARGEST);
    if (inverse == 0) memset(x, 0, count * sizeof(float));
    for (int64_t i = 0; i < count; i++) x[i] = rintf(x[i] * inverse);
}

/* A step of numbers: each vector of 8 has every second number, or every fourth. */
ALWAYS_INLINE void arrange(const float *restrict x, int16_t *restrict to, const int64_t parts) {
    for (int64_t j = 0; j < parts; j++)
        for (int64_t i = 0; i < 8; i++) to[8 * j + i] = (int16_t)x[parts * i + j];
}

/* Arranges one of `tile` rows; x is padded with zeros to a whole step. */
static void arrange_all(const float *x, int64_t count, int64_t step, int64_t tile, int16_t *to) {
    for (int64_t at = 0; at < count; at += step)
        if (step == BYTES) arrange(x + at, to + at * tile, 2);
        else arrange(x + at, to + at * tile, 4);
}

/* Arranges one of REGISTER_FLOATS rows, in words. */
static void arrange_words(const float *restrict x, int64_t count, int64_t each, int32_t *restrict to) {
    for (int64_t k = 0; k < count; k += each, to += REGISTER_FLOATS) {
        if (each == 2) *to = (int32_t)((uint32_t)(int32_t)x[k + 1] << 16 | (uint16_t)(int16_t)x[k]);
        else
            for (int64_t j = 0; j < 4; j++) ((int8_t *)to)[j] = (int8_t)x[k + j];
    }
}

/* A row's piece at byte `at` of its chunks: first upper bytes, of even columns before odd ones, then lower ones.
 * Returns the sum of the factors of a weight's zero. */
static int32_t arrange_bytes(const Weight *w, const float *restrict x, int64_t count, int64_t at, int8_t *restrict to) {
    const int64_t parts = w->kind == INT8 ? 1 : 2, each = numbers_in_chunk(w);
    int32_t sum = 0;
    for (int64_t begin = 0, bytes = count / parts, run; begin < bytes; begin += run, at += run) {
        run = least(CHUNK - at % CHUNK, bytes - begin);
        for (int64_t part = 0; part < parts; part++) {
            int8_t *restrict high = to + at / CHUNK * each + part * CHUNK + at % CHUNK, *restrict low = high + parts * CHUNK;
            const float *restrict own = x + begin * parts + part;
            for (int64_t i = 0; i < run; i++) {
                const int32_t number = (int32_t)own[i * parts];
                high[i] = (int8_t)(w->whole ? number : number >> 8);
                if (!w->whole) low[i] = (int8_t)number;
                sum += w->whole || parts == 2 ? number : number & -256;
            }
        }
    }
    return sum;
}

/* Row i of a tile that begins at row m. */
static void round_row(const Weight *w, const float *x, int64_t K, Rounded to, int64_t m, int64_t i, int64_t tile) {
    const int64_t span = span_of(w), step = step_of(w->kind), each = each_of(w);
    float piece[span + step];
    const int64_t bytes = BY_BYTES && !to.many, alone = bytes && pieces_in_chunk(w, K) == 1;
    int64_t p = m * to.pieces + i, byte = 0;
    if (bytes) memset(to.numbers + m * to.wide, 0, to.wide * sizeof(int16_t));
    for (int64_t group = 0; group < K; group += w->group)
        for (int64_t at = group; at < group + w->group; at += span, p += tile) {
            const int64_t count = least(span, group + w->group - at);
            if (w->order)
                for (int64_t k = 0; k < count; k++) piece[k] = x[w->order[at + k]];
            else memcpy(piece, x + at, count * sizeof(float));
            round_piece(piece, count, w->whole != 0, to.scales + p);
            memset(piece + count, 0, step * sizeof(float));
            if (bytes) {
                to.sums[p] = arrange_bytes(w, piece, count, byte, (int8_t *)(to.numbers + m * to.wide));
                byte += bytes_of(w->kind, count);
                if (alone) byte = least_up(byte, CHUNK);
                continue;
            }
            if (to.many) arrange_words(piece, count, each, (int32_t *)(to.numbers + m * to.wide) + at / each * REGISTER_FLOATS + i);
            else arrange_all(piece, count, step, tile, to.numbers + m * to.wide + at * tile + i * step);
            int32_t sum = 0;
            for (int64_t k = 0; k < count; k++) sum += (int32_t)piece[k];
            to.sums[p] = sum;
        }
}

static void round_rows(const Weight *w, const float *x, int64_t M, int64_t K, Rounded to) {
    for (int64_t m = 0, tile; m < M; m += tile) {
        tile = tile_of(to, M - m);
        if (M - m < tile) {
            memset(to.numbers + m * to.wide, 0, tile * to.wide * sizeof(int16_t));
            memset(to.scales + m * to.pieces, 0, tile * to.pieces * sizeof(float));
            memset(to.sums + m * to.pieces, 0, tile * to.pieces * sizeof(int32_t));
        }
        for (int64_t i = 0; i < least(tile, M - m); i++) round_row(w, x + (m + i) * K, K, to, m, i, tile);
    }
}
#endif
