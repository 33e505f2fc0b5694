/* Products of integers with few rows of x by a CPU's products of bytes (AVX-512 VNNI). A 16-bit number of x is two
 * bytes, of which the upper is signed: sums of both are computed in parallel. One of a product's two bytes must be
 * unsigned, so numbers of a weight are shifted up by a zero, unless they are multiplied by a lower byte, which is
 * unsigned.
 *
 * A chunk is 64 bytes of a row of a weight, in four lanes of a sum. It has one piece or a part of it, or two or four
 * small pieces.
 */
#ifndef RONDO_BYTES_H
#define RONDO_BYTES_H
#include "quantized/rounded.h"

#ifdef HAS_QUADS
enum { ACROSS = 16, RUNS = 16, AHEAD = 16384 };

/* Pointers and scales of sixteen rows of a weight, like `Eight`. */
typedef struct {
    const uint8_t *rows[ACROSS];
    const float *scales;
    const int32_t *zeros;
    int64_t apart, even; /* distance of the groups' zeros; whether all rows exist */
} Sixteen;

/* Half of the values of `count` bytes of e8m0. */
static void halves_of_powers(const uint8_t *from, int64_t count, float *to) {
    for (int64_t i = 0; i < count; i += 16) {
        const __mmask16 there = (__mmask16)(count - i < 16 ? (1u << (count - i)) - 1 : 0xffff);
        const __m512i codes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, from + i));
        __m512i bits = _mm512_slli_epi32(codes, 23);
        bits = _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(codes, codes), _mm512_set1_epi32(1 << 22));
        bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(codes, _mm512_set1_epi32(255)), _mm512_set1_epi32(0x7fc00000));
        _mm512_mask_storeu_ps(to + i, there, _mm512_mul_ps((__m512)bits, _mm512_set1_ps(0.5f)));
    }
}

/* `room` has three times the numbers of sixteen rows' groups. */
static Sixteen sixteen_at(const Weight *w, int64_t K, int64_t n, int64_t last, float *room) {
    const int64_t groups = K / w->group, bytes = bytes_of(w->kind, K);
    float *scales = room, *zeros = scales + ACROSS * groups, *each = zeros + ACROSS * groups;
    Sixteen s = {.scales = scales, .zeros = (int32_t *)zeros, .apart = w->zeros ? ACROSS : 0, .even = last - n >= ACROSS - 1};
    int64_t at[ACROSS];
    for (int64_t c = 0; c < ACROSS; c++) {
        const int64_t own = least(n + c, last);
        s.rows[c] = (const uint8_t *)w->data + own * bytes;
        at[c] = (w->block == 1 ? own : own / w->block) * groups;
    }
    const int64_t size = w->kind == MXFP4 ? 1 : sizeof(float), after = at[ACROSS - 1] + groups, taken = ACROSS * groups;
    for (int64_t i = 0; i < taken * size; i += 64) __builtin_prefetch((const char *)w->scales + after * size + i, 0, 3);
    for (int64_t i = 0; w->zeros && i < taken; i += 64) __builtin_prefetch(w->zeros + after + i, 0, 3);
    if (w->kind != MXFP4 && w->block == 1 && s.even) transpose((const float *)w->scales + at[0], ACROSS, groups, groups, scales, ACROSS);
    else {
        for (int64_t c = 0; c < ACROSS; c++)
            if (w->kind == MXFP4) halves_of_powers((const uint8_t *)w->scales + at[c], groups, each + c * groups);
            else memcpy(each + c * groups, (const float *)w->scales + at[c], groups * sizeof(float));
        transpose(each, ACROSS, groups, groups, scales, ACROSS);
    }
    for (int64_t c = 0; c < ACROSS; c++)
        if (w->zeros)
            for (int64_t g = 0; g < groups; g++) ((int32_t *)zeros)[g * ACROSS + c] = w->zeros[at[c] + g];
        else ((int32_t *)zeros)[c] = w->kind == INT8 ? 128 : w->kind == INT4 ? 8 : E2M1_MOST;
    return s;
}

/* Unsigned bytes, or, for int8, signed ones. */
ALWAYS_INLINE __m512i part_of(const int64_t kind, __m512i bytes, const int part) {
    if (kind == INT8) return bytes;
    const __m512i codes = _mm512_and_si512(part ? _mm512_srli_epi16(bytes, 4) : bytes, _mm512_set1_epi8(0x0f));
    if (kind == INT4) return codes;
    const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return _mm512_shuffle_epi8(table, codes);
}

/* In each lane the sum of the four lanes of each vector. */
ALWAYS_INLINE __m512i sums_by_lane(const __m512i *sum) {
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(sum[0], sum[1]), _mm512_unpackhi_epi32(sum[0], sum[1]));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(sum[2], sum[3]), _mm512_unpackhi_epi32(sum[2], sum[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

/* sums [M]: products of M rows of x with `count` bytes of a row of a weight; a lane has the sum of its own bytes.
 * CHUNKS is their number as a compile-time constant, or 0. */
ALWAYS_INLINE void run_sums(const int64_t kind, const int whole, const uint8_t *row, int64_t count, const int8_t *x, int64_t apart, __m512i *sums,
                            const int M, const int CHUNKS) {
    const int parts = kind == INT8 ? 1 : 2;
    const int64_t chunks = CHUNKS ? CHUNKS : (count + CHUNK - 1) / CHUNK;
    __m512i high[2], low[2];
#pragma GCC unroll 2
    for (int m = 0; m < M; m++) high[m] = low[m] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int64_t i = 0; i < chunks; i++, x += CHUNK * parts * (whole ? 1 : 2)) {
        const int64_t rest = count - i * CHUNK;
        const __m512i bytes = CHUNKS || rest >= CHUNK ? _mm512_loadu_si512(row + i * CHUNK) : _mm512_maskz_loadu_epi8((1ull << rest) - 1, row + i * CHUNK);
        __builtin_prefetch(row + i * CHUNK + AHEAD, 0, 3);
#pragma GCC unroll 2
        for (int part = 0; part < parts; part++) {
            const __m512i numbers = part_of(kind, bytes, part);
            const __m512i up = kind == INT8 ? _mm512_xor_si512(numbers, _mm512_set1_epi8(-128)) : numbers;
#pragma GCC unroll 2
            for (int m = 0; m < M; m++) {
                const __m512i *own = (const __m512i *)(x + m * apart);
                high[m] = _mm512_dpbusd_epi32(high[m], up, _mm512_loadu_si512(own + part));
                if (!whole) low[m] = _mm512_dpbusd_epi32(low[m], _mm512_loadu_si512(own + parts + part), numbers);
            }
        }
    }
#pragma GCC unroll 2
    for (int m = 0; m < M; m++) sums[m] = whole ? high[m] : _mm512_add_epi32(_mm512_slli_epi32(high[m], 8), low[m]);
}

/* Bytes of a row that are summed at once, the offset of the bytes of x, and whether a group ends. */
typedef struct {
    int64_t at, count, own, ends;
} Run;

/* A vector of results is sixteen columns of a row, or eight of two. */
ALWAYS_INLINE __m512i of_rows(const void *each, int64_t apart, const int M) {
    const int32_t *rows = each;
    if (M == 1) return _mm512_set1_epi32(rows[0]);
    return _mm512_inserti64x4(_mm512_set1_epi32(rows[0]), _mm256_set1_epi32(rows[apart]), 1);
}

ALWAYS_INLINE __m512i of_columns(const void *each, const int M) {
    return M == 1 ? _mm512_loadu_si512(each) : _mm512_broadcast_i64x4(_mm256_loadu_si256(each));
}

/* lanes [4] of sixteen sums, each of its own four lanes: separate for several pieces in a chunk, or all in the first
 * for one. */
ALWAYS_INLINE void turn_lanes(const __m512i *sums, int64_t shared, __m512i *lane) {
    const __m512i first = sums_by_lane(sums), second = sums_by_lane(sums + 4), third = sums_by_lane(sums + 8), last = sums_by_lane(sums + 12);
    const __m512i a = _mm512_shuffle_i32x4(first, second, 0x44), b = _mm512_shuffle_i32x4(first, second, 0xee);
    const __m512i c = _mm512_shuffle_i32x4(third, last, 0x44), d = _mm512_shuffle_i32x4(third, last, 0xee);
    lane[0] = _mm512_shuffle_i32x4(a, c, 0x88), lane[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
    lane[2] = _mm512_shuffle_i32x4(b, d, 0x88), lane[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
    if (shared < 4) lane[0] = _mm512_add_epi32(lane[0], lane[1]), lane[2] = _mm512_add_epi32(lane[2], lane[3]);
    if (shared < 2) lane[0] = _mm512_add_epi32(lane[0], lane[2]);
}

/* Position of a tile among the pieces of x and the groups of a weight, and its sixteen results so far. */
typedef struct {
    __m512 acc;
    const float *scales;
    const int32_t *zeros;
    int64_t p;
} Place;

/* Adds the pieces of a run, whose sums are in lanes; `next` if a group ends with each. */
ALWAYS_INLINE void add_run(Place *at, const Sixteen *s, Rounded x, const __m512i *sums, int64_t shared, int64_t pieces, int next, const int whole,
                           const int M) {
    __m512i lane[4];
    turn_lanes(sums, shared, lane);
    for (int64_t i = 0; i < pieces; i++, at->p++) {
        const __m512i off = _mm512_mullo_epi32(of_columns(at->zeros, M), of_rows(x.sums + at->p, x.pieces, M));
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(lane[i * (4 / shared)], off));
        const __m512 by = (__m512)of_rows(x.scales + at->p, x.pieces, M), scale = (__m512)of_columns(at->scales, M);
        at->acc = whole ? _mm512_mul_ps(_mm512_mul_ps(sum, by), scale) : _mm512_fmadd_ps(sum, _mm512_mul_ps(by, scale), at->acc);
        if (next) at->scales += ACROSS, at->zeros += s->apart;
    }
}

/* Columns from `first` of M rows of x from m: sixteen results in total. Rows of the weight are read sequentially, as
 * far as there is room for sums, which is fastest for memory. */
ALWAYS_INLINE __m512 bytes_tile(const int64_t kind, const int whole, const Weight *w, Rounded x, int64_t m, int64_t K, const Sixteen *s,
                                int64_t first, const int M, const int CHUNKS) {
    const int64_t span = bytes_of(kind, span_of(w)), group = bytes_of(kind, w->group), all = bytes_of(kind, K), shared = pieces_in_chunk(w, K);
    const int64_t each = numbers_in_chunk(w), apart = 2 * x.wide;
    const int8_t *numbers = (const int8_t *)(x.numbers + m * x.wide);
    Place place = {_mm512_setzero_ps(), s->scales + first, s->zeros + first, m * x.pieces};
    for (int64_t at = 0, own = 0, end = group; at < all;) {
        __m512i sums[RUNS][ACROSS];
        Run runs[RUNS];
        int64_t count = 0;
        for (; count < RUNS && at < all; count++) {
            const int64_t bytes = shared > 1 ? least(CHUNK, all - at) : least(span, end - at);
            runs[count] = (Run){at, bytes, own, at + bytes == end};
            at += bytes, own += (bytes + CHUNK - 1) / CHUNK * each;
            if (at == end) end += group;
        }
        for (int64_t c = 0; c < ACROSS / M; c++)
            for (int64_t r = 0; r < count; r++) {
                __m512i found[2];
                const int64_t at = CHUNKS ? runs[0].at + r * CHUNKS * CHUNK : runs[r].at, own = CHUNKS ? runs[0].own + r * CHUNKS * each : runs[r].own;
                run_sums(kind, whole, s->rows[first + c] + at, runs[r].count, numbers + own, apart, found, M, CHUNKS);
#pragma GCC unroll 2
                for (int i = 0; i < M; i++) sums[r][c + i * ACROSS / M] = found[i];
            }
        for (int64_t r = 0; r < count; r++)
            add_run(&place, s, x, sums[r], shared, shared > 1 ? runs[r].count / group : 1, shared > 1 || runs[r].ends, whole, M);
    }
    return place.acc;
}

/* The same for four bits, with runs of one or two chunks. There are so many sums that they cost more than memory, so
 * they stay in registers, and the loaded numbers of x are multiplied with all columns. Prefetches lines of the next
 * columns. */
ALWAYS_INLINE __m512 codes_tile(const int64_t kind, const Weight *w, Rounded x, int64_t m, int64_t K, const Sixteen *s, int64_t first, const int M,
                                const int CHUNKS) {
    const int64_t group = bytes_of(kind, w->group), all = bytes_of(kind, K), shared = pieces_in_chunk(w, K), apart = 2 * x.wide;
    const int64_t pieces = shared > 1 ? CHUNK / group : 1, runs = shared > 1 ? 1 : group / (CHUNKS * CHUNK);
    const int columns = ACROSS / M;
    const int64_t ahead = columns * all;
    const uint8_t *row = s->rows[first];
    const __m512i *numbers = (const __m512i *)(x.numbers + m * x.wide);
    Place place = {_mm512_setzero_ps(), s->scales + first, s->zeros + first, m * x.pieces};
    for (int64_t at = 0, run = 1; at < all; run = run == runs ? 1 : run + 1) {
        __m512i sums[ACROSS];
#pragma GCC unroll 2
        for (int i = 0; i < CHUNKS; i++, at += CHUNK, numbers += 4) {
            __m512i own[2][4];
#pragma GCC unroll 2
            for (int r = 0; r < M; r++)
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) own[r][j] = _mm512_loadu_si512((const int8_t *)(numbers + j) + r * apart);
            const uint8_t *line = row + at;
#pragma GCC unroll 16
            for (int c = 0; c < columns; c++, line += all) {
                __m512i bytes = _mm512_loadu_si512(line);
                HOLD(bytes);
                const __m512i low = part_of(kind, bytes, 0), high = part_of(kind, bytes, 1);
                __builtin_prefetch(line + ahead, 0, 3);
#pragma GCC unroll 2
                for (int r = 0; r < M; r++) {
                    const __m512i upper = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), low, own[r][0]), high, own[r][1]);
                    const __m512i lower = i ? sums[c + r * columns] : _mm512_setzero_si512();
                    sums[c + r * columns] = _mm512_add_epi32(
                        _mm512_slli_epi32(upper, 8), _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(lower, own[r][2], low), own[r][3], high));
                }
            }
        }
        add_run(&place, s, x, sums, shared, pieces, shared > 1 || run == runs, 0, M);
    }
    return place.acc;
}

/* tile [2, ACROSS]: one or two rows of x from m. */
ALWAYS_INLINE void bytes_columns(const int64_t kind, const int whole, const Weight *w, Rounded x, int64_t M, int64_t K, const Sixteen *s,
                                 float *tile, int64_t m, const int CHUNKS) {
    const int codes = kind != INT8 && CHUNKS && s->even;
    if (m + 1 == M) {
        _mm512_storeu_ps(tile, codes ? codes_tile(kind, w, x, m, K, s, 0, 1, CHUNKS) : bytes_tile(kind, whole, w, x, m, K, s, 0, 1, CHUNKS));
        return;
    }
    for (int half = 0; half < ACROSS; half += 8) {
        const __m512 both = codes ? codes_tile(kind, w, x, m, K, s, half, 2, CHUNKS) : bytes_tile(kind, whole, w, x, m, K, s, half, 2, CHUNKS);
        _mm256_storeu_ps(tile + half, _mm512_castps512_ps256(both));
        _mm256_storeu_ps(tile + ACROSS + half, _mm512_extractf32x8_ps(both, 1));
    }
}

/* Chunks of a run, if all have the same number. */
static inline int64_t even_chunks(const Weight *w, int64_t K) {
    const int64_t span = bytes_of(w->kind, span_of(w)), group = bytes_of(w->kind, w->group), all = bytes_of(w->kind, K);
    if (pieces_in_chunk(w, K) > 1) return all % CHUNK ? 0 : 1;
    return span % CHUNK || group % span ? 0 : span / CHUNK;
}

static void integer_product(const Weight *w, Rounded x, int64_t M, int64_t K, int64_t from, int64_t to, float *out, int64_t apart,
                            float *room) {
    const int64_t even = even_chunks(w, K);
    for (int64_t n = from; n < to; n += ACROSS) {
        const Sixteen s = sixteen_at(w, K, n, to - 1, room);
        for (int64_t m = 0; m < M; m += 2) {
            float tile[2 * ACROSS];
#define CHUNKS(KIND, WHOLE, COUNT) bytes_columns(KIND, WHOLE, w, x, M, K, &s, tile, m, COUNT)
#define KNOWN(KIND, COUNT)                                                                                             \
    if (even == 1) CHUNKS(KIND, 0, 1);                                                                                 \
    else if (even == 2) CHUNKS(KIND, 0, 2);                                                                            \
    else if (even == COUNT) CHUNKS(KIND, 0, COUNT);                                                                    \
    else CHUNKS(KIND, 0, 0);
            if (w->whole) CHUNKS(INT8, 1, 0);
            else if (w->kind == INT8) { KNOWN(INT8, 4) }
            else if (w->kind == INT4) { KNOWN(INT4, 2) }
            else { KNOWN(MXFP4, 2) }
#undef KNOWN
#undef CHUNKS
            for (int64_t i = 0; i < least(2, M - m); i++) memcpy(out + (m + i) * apart + n - from, tile + i * ACROSS, least(ACROSS, to - n) * sizeof(float));
        }
    }
}
#endif
#endif
