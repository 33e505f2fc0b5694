/* Threads that come late, or lose their core in the middle of a share, take shares of many phases: each phase must find all
 * that the one before wrote, and each share must be taken once.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "quantized/phases.h"

enum { THREADS = 4, PHASES = 400, MOST_SHARES = 9, ROUNDS = 4 };

typedef struct {
    Phases phases;
    int64_t written[PHASES][MOST_SHARES];
} Work;

/* Some phases have no share, some one. */
static int64_t count_of(const void *work, int64_t phase) {
    (void)work;
    return phase < PHASES ? phase * 7 % (MOST_SHARES + 1) : -1;
}

static void rest(int64_t nanoseconds) { nanosleep(&(struct timespec){0, nanoseconds}, NULL); }

static void expect(int holds, const char *what, int64_t phase) {
    if (holds) return;
    printf("phase %lld: %s\n", (long long)phase, what);
    exit(1);
}

static void do_share(Work *w, Taken t) {
    expect(t.count == count_of(w, t.phase) && t.share >= 0 && t.share < t.count, "no such share", t.phase);
    int64_t before = t.phase - 1;
    while (before >= 0 && !count_of(w, before)) before--;
    for (int64_t i = 0; before >= 0 && i < count_of(w, before); i++)
        expect(w->written[before][i] == before + i + 1, "the one before is not whole", t.phase);
    if ((t.phase + t.share) % 37 == 0) rest(200000);
    expect(!w->written[t.phase][t.share], "a share is taken twice", t.phase);
    w->written[t.phase][t.share] = t.phase + t.share + 1;
}

static void *take_all(void *work) {
    Work *w = work;
    for (Taken taken = {0}; take_share(&w->phases, &taken);) do_share(w, taken);
    return NULL;
}

static void *come_late(void *work) {
    rest(1000000);
    return take_all(work);
}

static void run(Work *w) {
    pthread_t threads[THREADS];
    *w = (Work){.phases = phases_of(count_of, w)};
    for (int i = 0; i < THREADS; i++) expect(!pthread_create(threads + i, NULL, i % 2 ? come_late : take_all, w), "no thread", 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int64_t phase = 0; phase < PHASES; phase++)
        for (int64_t i = 0; i < count_of(w, phase); i++) expect(w->written[phase][i] == phase + i + 1, "a share is missing", phase);
}

int main(void) {
    static Work work;
    for (int i = 0; i < ROUNDS; i++) run(&work);
    work = (Work){.phases = phases_of(count_of, &work)};
    take_all(&work);
    return 0;
}
