/* CPU time of a thread in seconds. */
#ifndef RONDO_SECONDS_H
#define RONDO_SECONDS_H
#include <time.h>

/* Excludes time in which other threads had the core. */
static double own_seconds(void) {
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) ? 0 : (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
#endif
