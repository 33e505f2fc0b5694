/* Products of all small shapes beside sums in fp64. Every result is the same to the bit for any number of rows, and
 * wherever columns are cut. Memory is of the exact size, for a sanitizer to see what is beyond it. */
#include "emulated.h"

#include "gemm/product.h"

enum { MOST = 40 };

static uint32_t state = 1;

static float any(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 23) - 1;
}

static void fail(const char *what, int64_t M, int64_t N, int64_t K) {
    fprintf(stderr, "%s: M %d, N %d, K %d\n", what, (int)M, (int)N, (int)K);
    exit(1);
}

static void *exactly(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) abort();
    memset(memory, 0xff, bytes); /* NaN, should anything be read before it is written */
    return memory;
}

static float *multiplied(int64_t type, const float *x, const void *w, int64_t M, int64_t N, int64_t K, int64_t from, int64_t to) {
    float *packed = exactly(packed_rows(M) * K * 4), *room = exactly(product_room(M) * 4), *out = exactly(M * N * 4);
    pack(type, x, M, K, packed);
    product(type, packed, M, K, w, from, to, out + from, N, room);
    free(packed), free(room);
    return out;
}

static void check(int64_t type, int64_t N, int64_t K) {
    float *x = exactly(MOST * K * 4), *floats = exactly(N * K * 4);
    void *w = exactly(N * K * (type == F32 ? 4 : 2));
    for (int64_t i = 0; i < MOST * K; i++) x[i] = type == F32 ? any() : from_bf16(to_bf16(any()));
    for (int64_t i = 0; i < N * K; i++) floats[i] = type == F32 ? any() : from_bf16(to_bf16(any()));
    narrow(type, floats, w, 0, N * K);
    x[7 * K + 3] = NAN, floats[0] = INFINITY, narrow(type, floats, w, 0, 1);
    float *all = multiplied(type, x, w, MOST, N, K, 0, N);
    for (int64_t m = 0; m < MOST; m++)
        for (int64_t n = 0; n < N; n++) {
            double exact = 0, size = 0;
            for (int64_t k = 0; k < K; k++) exact += (double)x[m * K + k] * floats[n * K + k], size += fabs((double)x[m * K + k] * floats[n * K + k]);
            const float got = all[m * N + n];
            if (isnan(exact) ? !isnan(got) : isinf(exact) ? got != exact : !(fabs(got - exact) <= size * K * 0x1p-23)) fail("a wrong number", m, n, K);
        }
    for (int64_t M = 0; M <= MOST; M++) {
        float *some = multiplied(type, x, w, M, N, K, 0, N);
        if (memcmp(some, all, M * N * 4)) fail("other bits for so many rows", M, N, K);
        free(some);
    }
    for (int64_t cut = 0; cut <= N; cut += N < 8 ? 1 : 7)
        for (int64_t M = 3; M < MOST; M += 20) {
            float *left = multiplied(type, x, w, M, N, K, 0, cut), *right = multiplied(type, x, w, M, N, K, cut, N);
            for (int64_t m = 0; m < M; m++)
                if (memcmp(left + m * N, all + m * N, cut * 4) || memcmp(right + m * N + cut, all + m * N + cut, (N - cut) * 4)) fail("other bits where columns are cut", m, cut, K);
            free(left), free(right);
        }
    free(all), free(x), free(floats), free(w);
}

int main(void) {
#if defined EMULATE_TILES
    if (way_of(BF16) != BY_TILES) fail("not by tiles", 0, 0, 0);
#elif defined EMULATE_DOTS
    if (way_of(BF16) != BY_DOTS) fail("not by dots", 0, 0, 0);
#endif
    const int64_t widths[] = {1, 5, 8, 17, 48, 57}, depths[] = {16, 48, 64, 272};
    for (int type = F32; type <= BF16; type++)
        for (int i = 0; i < 6; i++)
            for (int j = 0; j < 4; j++) check(type, widths[i], depths[j]);
    return 0;
}
