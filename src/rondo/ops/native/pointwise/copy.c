/* Copies bytes with stores that bypass the caches. An ordinary store reads a line of the target before it writes it,
 * which costs a third of the memory traffic of a large copy. */
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

enum { LINE = 64 };

#ifdef __SSE2__
static void store_line(char *to, const char *from) {
#ifdef __AVX__
    const __m256i a = _mm256_loadu_si256((const __m256i *)from), b = _mm256_loadu_si256((const __m256i *)(from + 32));
    _mm256_stream_si256((__m256i *)to, a);
    _mm256_stream_si256((__m256i *)(to + 32), b);
#else
    for (int i = 0; i < LINE; i += 16)
        _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
#endif
}

void copy_past_caches(char *to, const char *from, int64_t n) {
    const int64_t unaligned = (int64_t)(-(uintptr_t)to % LINE), head = unaligned < n ? unaligned : n;
    memcpy(to, from, (size_t)head);
    int64_t i = head;
    for (; i + LINE <= n; i += LINE) store_line(to + i, from + i);
    _mm_sfence();
    memcpy(to + i, from + i, (size_t)(n - i));
}
#else
void copy_past_caches(char *to, const char *from, int64_t n) { memcpy(to, from, (size_t)n); }
#endif
