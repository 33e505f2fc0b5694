/* Work in phases, each of which starts when the previous one is complete. A phase's shares are taken one by one, so
 * that a preempted thread delays the others only while it holds a share; they take over the rest of its work. There is
 * no barrier at which threads wait for one another to arrive.
 *
 * A share reads results of earlier phases only. The result of a share must not depend on the thread.
 */
#ifndef RONDO_PHASES_H
#define RONDO_PHASES_H
#include <limits.h>
#if defined __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <sched.h>
#endif

#include "build/shares.h"

/* Number of shares of a phase of `work`; below 0 if there is no such phase. */
typedef int64_t (*CountShares)(const void *work, int64_t phase);

/* `turn` is one number, so that it changes atomically: its upper half counts the phases, its lower half the remaining
 * shares, or it is OVER. Only a thread with a share reads `phase` and `count`; threads without one sleep at `bell`. */
typedef struct __attribute__((aligned(64))) {
    uint64_t turn;
    int64_t phase, count;
    CountShares count_shares;
    const void *work;
    __attribute__((aligned(64))) int64_t done;
    __attribute__((aligned(64))) uint32_t bell;
    int32_t sleepers;
} Phases;

/* The share of a thread; initially none. */
typedef struct {
    int64_t phase, share, count;
} Taken;

enum { SPINS = 2000 }; /* about as long as it takes to fall asleep and wake up */
static const uint64_t OVER = 1u << 31, PHASE = (uint64_t)1 << 32;

static inline int64_t shares_left(uint64_t turn) { return (int64_t)(turn & (OVER - 1)); }

static inline void pause_thread(void) {
#if defined __SSE2__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ __volatile__("yield");
#endif
}

#if defined __linux__
static inline void sleep_at(uint32_t *bell, uint32_t rung) { syscall(SYS_futex, bell, FUTEX_WAIT_PRIVATE, rung, NULL, NULL, 0); }
static inline void wake_at(uint32_t *bell, int count) { syscall(SYS_futex, bell, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0); }
#else
static inline void sleep_at(uint32_t *bell, uint32_t rung) {
    while (__atomic_load_n(bell, __ATOMIC_SEQ_CST) == rung) sched_yield();
}
static inline void wake_at(uint32_t *bell, int count) { (void)bell, (void)count; }
#endif

/* A thread that goes to sleep registers before its last read of `turn`, and a thread that changes `turn` checks for
 * sleepers afterwards, so that one of the two notices the other. A phase of one share is run by the thread that opens
 * it. */
static void open_phase(Phases *p, int64_t phase) {
    int64_t count;
    while ((count = p->count_shares(p->work, phase)) == 0) phase++;
    p->phase = phase, p->count = count;
    __atomic_store_n(&p->done, 0, __ATOMIC_RELAXED);
    const uint64_t before = __atomic_load_n(&p->turn, __ATOMIC_RELAXED) / PHASE * PHASE;
    __atomic_store_n(&p->turn, before + PHASE + (count < 0 ? OVER : (uint64_t)count), __ATOMIC_SEQ_CST);
    if (count == 1 || !__atomic_load_n(&p->sleepers, __ATOMIC_SEQ_CST)) return;
    __atomic_add_fetch(&p->bell, 1, __ATOMIC_SEQ_CST);
    wake_at(&p->bell, count < 0 ? INT_MAX : (int)least(count - 1, INT_MAX));
}

/* Waits until `turn` differs from this value. */
static void wait_for_turn(Phases *p, uint64_t turn) {
    for (int64_t i = 0; i < SPINS; i++) {
        if (__atomic_load_n(&p->turn, __ATOMIC_RELAXED) != turn) return;
        pause_thread();
    }
    const uint32_t rung = __atomic_load_n(&p->bell, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&p->sleepers, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&p->turn, __ATOMIC_SEQ_CST) == turn) sleep_at(&p->bell, rung);
    __atomic_sub_fetch(&p->sleepers, 1, __ATOMIC_SEQ_CST);
}

static Phases phases_of(CountShares count_shares, const void *work) {
    Phases p = {.count_shares = count_shares, .work = work};
    open_phase(&p, 0);
    return p;
}

/* Completes the thread's share and takes the next one. Returns 0 if all phases are over. */
static int take_share(Phases *p, Taken *t) {
    if (t->count && __atomic_add_fetch(&p->done, 1, __ATOMIC_ACQ_REL) == t->count) open_phase(p, t->phase + 1);
    uint64_t turn = __atomic_load_n(&p->turn, __ATOMIC_ACQUIRE);
    for (; !(turn & OVER); turn = __atomic_load_n(&p->turn, __ATOMIC_ACQUIRE)) {
        if (!shares_left(turn)) wait_for_turn(p, turn);
        else if (__atomic_compare_exchange_n(&p->turn, &turn, turn - 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            *t = (Taken){p->phase, p->count - shares_left(turn), p->count};
            return 1;
        }
    }
    return 0;
}
#endif
