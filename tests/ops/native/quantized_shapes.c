/* Products with quantized weights of all kinds, over shapes drawn at random, in memory of the exact size, for a sanitizer to
 * see what is beyond it. What comes out is compared elsewhere. */
#include <stdlib.h>

#include "quantized/quantized.c"

enum { ROUNDS = 400, MOST_EXPERTS = 3 };

static uint32_t state = 1;

static int64_t below(int64_t end) {
    state = state * 1664525u + 1013904223u;
    return (int64_t)(state >> 8) % end;
}

static void *filled(int64_t bytes) {
    uint8_t *memory = malloc(bytes ? bytes : 1);
    if (!memory) abort();
    for (int64_t i = 0; i < bytes; i++) memory[i] = (uint8_t)below(256);
    return memory;
}

static float *floats(int64_t count) {
    float *memory = filled(count * 4);
    for (int64_t i = 0; i < count; i++) memory[i] = (float)(below(2001) - 1000) * 1e-3f;
    return memory;
}

/* Of one group any number of columns, of several whole steps. */
static int64_t group_of(int64_t kind, int64_t groups) {
    if (kind == MXFP4) return 32;
    if (groups == 1 && kind != FP8) return (1 + below(300)) * (kind == INT4 ? 2 : 1);
    return (kind == INT4 ? 32 : 16) * (1 + below(12));
}

static Weight weight_for(int64_t kind, int64_t experts, int64_t N, int64_t K, int64_t group) {
    const int64_t scales = experts * N * (K / group), orders = experts * K;
    Weight w = {.data = filled(experts * N * bytes_of(kind, K)), .kind = kind, .group = group, .block = 1};
    w.scales = kind == MXFP4 ? filled(scales) : floats(scales);
    if (kind == INT4 && below(2)) w.zeros = filled(scales);
    if (kind == INT8 && group == K) w.whole = below(2);
    if (kind != FP8 && !w.whole && below(2)) {
        int64_t *order = filled(orders * 8);
        for (int64_t i = 0; i < orders; i++) order[i] = K - 1 - i % K;
        w.order = order;
    }
    return w;
}

static void multiply(int64_t kind) {
    const int64_t groups = 1 + below(4), group = group_of(kind, groups), K = groups * group, N = 1 + below(40), M = below(70);
    const int64_t experts = 1 + below(MOST_EXPERTS);
    int64_t bounds[MOST_EXPERTS + 1] = {0}, owners[MOST_EXPERTS];
    for (int64_t e = 0; e < experts; e++) {
        owners[e] = below(experts);
        bounds[e + 1] = e + 1 == experts ? M : bounds[e] + below(M - bounds[e] + 1);
    }
    float *x = floats(M * K), *out = floats(M * N);
    if (M && below(3) == 0) x[below(M * K)] = below(2) ? INFINITY : NAN;
    Args a = {.weight = weight_for(kind, experts, N, K, group), .x = x, .out = out, .bounds = bounds, .owners = owners,
              .groups = experts, .K = K, .N = N, .threads = 1};
    a.memory = filled(quantized_memory(&a) * 4);
    quantized(&a);
    free(a.memory), free(x), free(out);
    free((void *)a.weight.data), free((void *)a.weight.scales), free((void *)a.weight.zeros), free((void *)a.weight.order);
}

int main(void) {
    const int64_t kinds[] = {INT8, INT4, MXFP4, FP8};
    for (int i = 0; i < ROUNDS; i++) multiply(kinds[i % 4]);
    return 0;
}
