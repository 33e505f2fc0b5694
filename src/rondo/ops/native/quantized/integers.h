/* Products of integers with few rows of x, exact in each piece, so that lanes may be numbers of one row: eight rows of
 * a weight at a time, two to a vector. */
#ifndef RONDO_INTEGERS_H
#define RONDO_INTEGERS_H
#include "quantized/bytes.h"

#if defined __AVX2__ && defined __FMA__ && !defined HAS_QUADS
/* Numbers of a step of a row, in the order of `arrange` for x, unsigned if a zero is subtracted later. Numbers beyond
 * `count` are arbitrary. */
static void take_out(int64_t kind, const uint8_t *row, int64_t count, int16_t *restrict to) {
    uint8_t bytes[BYTES] = {0};
    memcpy(bytes, row, bytes_of(kind, count));
    if (kind == INT8)
        for (int64_t i = 0; i < BYTES; i++) to[i % 2 * 8 + i / 2] = (int8_t)bytes[i];
    else
        for (int64_t i = 0; i < BYTES; i++) {
            const int low = bytes[i] & 15, high = bytes[i] >> 4;
            int16_t *restrict place = to + i % 2 * 16 + i / 2;
            place[0] = (int16_t)(kind == INT4 ? low : E2M1[low] + E2M1_MOST);
            place[8] = (int16_t)(kind == INT4 ? high : E2M1[high] + E2M1_MOST);
        }
}

/* The products of columns `from` to `to` of a row with row i of a tile; both start at a step. */
static int32_t products_of(int64_t kind, const uint8_t *row, const int16_t *x, int64_t from, int64_t to, int64_t i, int64_t tile) {
    const int64_t step = step_of(kind);
    int32_t sum = 0;
    for (int64_t k = from; k < to; k += step) {
        int16_t numbers[2 * BYTES];
        const int16_t *own = x + (k - from) * tile + i * step;
        take_out(kind, row + bytes_of(kind, k), least(step, to - k), numbers);
        for (int64_t in = 0; in < step; in++) sum += (int32_t)numbers[in] * own[in];
    }
    return sum;
}

#define STAY(x) __asm__("" : "+x"(x))

/* Vector j of the numbers in two rows, as integers of 16 bits. */
ALWAYS_INLINE __m256i vector_of(const int64_t kind, __m256i bytes, const int j) {
    const __m256i low = _mm256_set1_epi16(0x000f), each = _mm256_set1_epi8(0x0f);
    if (kind == INT8) return _mm256_srai_epi16(j ? bytes : _mm256_slli_epi16(bytes, 8), 8);
    if (kind == INT4) {
        const __m256i moved = j ? _mm256_srli_epi16(bytes, 4 * j) : bytes;
        return j == 3 ? moved : _mm256_and_si256(moved, low);
    }
    const __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i found = _mm256_shuffle_epi8(table, _mm256_and_si256(j % 2 ? _mm256_srli_epi16(bytes, 4) : bytes, each));
    return j < 2 ? _mm256_and_si256(found, _mm256_set1_epi16(0x00ff)) : _mm256_srli_epi16(found, 8);
}

ALWAYS_INLINE __m256i add_products(__m256i sum, __m256i a, __m256i b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

/* sum [M, PAIRS]: products of M rows of x with 2 PAIRS rows of the weight, of which a vector has two. */
ALWAYS_INLINE void piece_sums(const int64_t kind, const int16_t *x, const uint8_t *const *rows, int64_t from, int64_t to,
                              const uint8_t *next, __m256i *sum, const int M, const int PAIRS) {
    const int parts = kind == INT8 ? 2 : 4;
    const int64_t step = 8 * parts, bytes = (to - from) / step * BYTES;
    const uint8_t *row[COLUMNS];
#pragma GCC unroll 8
    for (int c = 0; c < 2 * PAIRS; c++) row[c] = rows[c] + bytes_of(kind, from);
    next += 2 * PAIRS * bytes_of(kind, from);
#pragma GCC unroll 8
    for (int i = 0; i < M * PAIRS; i++) sum[i] = _mm256_setzero_si256();
    for (int64_t at = 0; at < bytes; at += BYTES, x += M * step) {
        __m256i pair[4];
#pragma GCC unroll 2
        for (int line = 0; line < PAIRS / 2; line++) __builtin_prefetch(next + 2 * PAIRS * at + 64 * line, 0, 2);
#pragma GCC unroll 4
        for (int p = 0; p < PAIRS; p++)
            pair[p] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(row[p] + at))),
                                              _mm_loadu_si128((const __m128i *)(row[p + PAIRS] + at)), 1);
#pragma GCC unroll 4
        for (int j = 0; j < parts; j++) {
            __m256i numbers[4];
#pragma GCC unroll 4
            for (int p = 0; p < PAIRS; p++) numbers[p] = vector_of(kind, pair[p], j);
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) {
                const __m256i own = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(x + m * step + 8 * j)));
#pragma GCC unroll 4
                for (int p = 0; p < PAIRS; p++) {
                    sum[m * PAIRS + p] = add_products(sum[m * PAIRS + p], numbers[p], own);
                    STAY(sum[m * PAIRS + p]);
                }
            }
        }
    }
}

/* The rest of a piece that does not end at a step. */
static __attribute__((noinline)) void add_rest(int64_t kind, const int16_t *x, const uint8_t *const *rows, int64_t from,
                                               int64_t to, __m256i *sum, int M, int PAIRS) {
    for (int i = 0; i < M * PAIRS; i++) {
        const int m = i / PAIRS, p = i % PAIRS;
        const int32_t first = products_of(kind, rows[p], x, from, to, m, M);
        const int32_t second = products_of(kind, rows[p + PAIRS], x, from, to, m, M);
        sum[i] = _mm256_add_epi32(sum[i], _mm256_setr_epi32(first, 0, 0, 0, second, 0, 0, 0));
    }
}

/* Lanes of a vector of results: eight columns of a row, or four of two rows: columns 0 and 1 of the one and of the other,
 * then columns 2 and 3. */
ALWAYS_INLINE __m256i lanes_of(const __m256i *sum) {
    return _mm256_hadd_epi32(_mm256_hadd_epi32(sum[0], sum[1]), _mm256_hadd_epi32(sum[2], sum[3]));
}

ALWAYS_INLINE __m256 by_column(const float *each, const int M) {
    if (M == 1) return _mm256_loadu_ps(each);
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_castps128_ps256(_mm_loadu_ps(each))), 0x50));
}

ALWAYS_INLINE __m256 by_row(const float *each, const int M) {
    if (M == 1) return _mm256_broadcast_ss(each);
    double both;
    memcpy(&both, each, sizeof both);
    return _mm256_permute_ps(_mm256_castpd_ps(_mm256_set1_pd(both)), 0x50);
}

/* Columns `first` on, 8 for one row of x and 4 for more, into tile [M, COLUMNS]. */
ALWAYS_INLINE void integer_tile(const int64_t kind, const Weight *w, Rounded x, int64_t m, int64_t K, const Eight *e, const int first,
                                float *tile, const int M) {
    const int PAIRS = M == 1 ? 4 : 2, vectors = M * PAIRS / 4;
    const int64_t span = span_of(w), whole = w->whole;
    const uint8_t *next = e->next + first * bytes_of(kind, K);
    const int16_t *numbers = x.numbers + m * x.wide;
    __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t group = 0, p = m * x.pieces, g = first; group < K; group += w->group, g += COLUMNS) {
        const __m256 scales = by_column(e->scales + g, M);
        const __m256i zeros = _mm256_castps_si256(by_column(e->zeros + g, M));
        const int64_t end = group + w->group;
        for (int64_t at = group, to; at < end; at = to, p += M) {
            __m256i sum[8];
            to = least(at + span, end);
            piece_sums(kind, numbers + at * M, e->rows + first, at, to, next, sum, M, PAIRS);
            const int64_t rest = (to - at) % step_of(kind);
            if (rest) add_rest(kind, numbers + (to - rest) * M, e->rows + first, to - rest, to, sum, M, PAIRS);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                const __m256 by = by_row(x.scales + p + 2 * v, M);
                const __m256i off = _mm256_mullo_epi32(zeros, _mm256_castps_si256(by_row((const float *)x.sums + p + 2 * v, M)));
                const __m256 found = _mm256_cvtepi32_ps(_mm256_sub_epi32(lanes_of(sum + 4 * v), off));
                if (whole) acc[v] = _mm256_mul_ps(_mm256_mul_ps(found, by), scales);
                else acc[v] = _mm256_fmadd_ps(found, _mm256_mul_ps(by, scales), acc[v]);
            }
        }
    }
    if (M == 1) _mm256_storeu_ps(tile, acc[0]);
    else
        for (int v = 0; v < vectors; v++) {
            const __m256 rows = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(acc[v]), 0xd8));
            _mm_storeu_ps(tile + 2 * v * COLUMNS + first, _mm256_castps256_ps128(rows));
            _mm_storeu_ps(tile + (2 * v + 1) * COLUMNS + first, _mm256_extractf128_ps(rows, 1));
        }
}
/* One row of x streams eight rows of the weight; more rows are multiplied four at a time, so that sums stay in
 * registers. */
ALWAYS_INLINE void integer_columns(const int64_t kind, const Weight *w, Rounded x, int64_t M, int64_t K, const Eight *e,
                                   int64_t count, float *out, int64_t apart) {
    float tile[4 * COLUMNS];
    for (int64_t m = 0, rows; m < M; m += rows) {
        rows = tile_of(x, M - m);
        if (rows == 1) integer_tile(kind, w, x, m, K, e, 0, tile, 1);
        else
            for (int half = 0; half < COLUMNS; half += 4)
                if (rows == 2) integer_tile(kind, w, x, m, K, e, half, tile, 2);
                else integer_tile(kind, w, x, m, K, e, half, tile, 4);
        for (int64_t i = 0; i < rows; i++) memcpy(out + (m + i) * apart, tile + i * COLUMNS, count * sizeof(float));
    }
}

static void integer_product(const Weight *w, Rounded x, int64_t M, int64_t K, int64_t from, int64_t to, float *out, int64_t apart,
                            float *room) {
    for (int64_t n = from; n < to; n += COLUMNS) {
        const Eight e = eight_at(w, K, n, to - 1, room);
        const int64_t count = least(COLUMNS, to - n);
        if (w->kind == INT8) integer_columns(INT8, w, x, M, K, &e, count, out + n - from, apart);
        else if (w->kind == INT4) integer_columns(INT4, w, x, M, K, &e, count, out + n - from, apart);
        else integer_columns(MXFP4, w, x, M, K, &e, count, out + n - from, apart);
    }
}
#elif !defined HAS_QUADS
static void integer_product(const Weight *w, Rounded x, int64_t M, int64_t K, int64_t from, int64_t to, float *out, int64_t apart,
                            float *room) {
    (void)w, (void)x, (void)M, (void)K, (void)from, (void)to, (void)out, (void)apart, (void)room;
}
#endif

/* Columns `from` to `to` of a row with non-finite numbers. */
static void multiply_plainly(const Weight *w, const float *x, int64_t K, int64_t from, int64_t to, float *out) {
    float row[K];
    for (int64_t n = from; n < to; n++) {
        float sum = 0;
        widen_row(w, K, n, row);
        for (int64_t k = 0; k < K; k++) sum += x[w->order ? w->order[k] : k] * row[k];
        out[n - from] = sum;
    }
}

/* Whether any piece of a row is non-finite; the row is in a tile that starts at row m. */
static int is_plain(Rounded x, int64_t m, int64_t i, int64_t tile) {
    int plain = 0;
    for (int64_t p = 0; p < x.pieces; p++) plain |= !(x.scales[m * x.pieces + p * tile + i] < INFINITY);
    return plain;
}

static void multiply_plain_rows(const Weight *w, Rounded rows, const float *x, int64_t M, int64_t K, int64_t from, int64_t to,
                                float *out, int64_t apart) {
    for (int64_t m = 0, tile; m < M; m += tile) {
        tile = tile_of(rows, M - m);
        for (int64_t i = 0; i < least(tile, M - m); i++)
            if (is_plain(rows, m, i, tile)) multiply_plainly(w, x + (m + i) * K, K, from, to, out + (m + i) * apart);
    }
}
#endif
