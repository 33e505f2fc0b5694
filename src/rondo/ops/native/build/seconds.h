/* Seconds that a thread had a core. */
#ifndef RONDO_SECONDS_H
#define RONDO_SECONDS_H
#include <time.h>

/* Not those in which others had it. */
static double own_seconds(void) {
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) ? 0 : (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
#endif
