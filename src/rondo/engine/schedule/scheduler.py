"""Scheduler: which requests run in a step, and with how many tokens. It uses no clock and no device: the same state
yields the same plan.

Each step has a token budget. Decodes are scheduled first, to keep their latency low; then requests with more tokens to
compute, in chunks that fit; then waiting requests (`Admission`). When blocks run out, the running request that is last
in order is preempted. Later it is recomputed (or hits the prefix cache), or restored from host memory, whichever is
faster (`Swap`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rondo.base.errors import Overloaded
from rondo.engine.kv.groups import GroupedPool
from rondo.engine.kv.prefixes import Prefixes
from rondo.engine.kv.swap import Swap
from rondo.engine.schedule.admission import Admission, Batching, BatchingPolicy
from rondo.engine.schedule.plan import Counters, StepPlan
from rondo.engine.schedule.queue import WaitingQueue
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.running import Running
from rondo.engine.speculate.room import make_room


class Scheduler:
    def __init__(
        self,
        pool: GroupedPool,
        max_num_seqs: int,
        max_step_tokens: int,
        max_queued: int,
        batching: Batching = "continuous",
        swap: Swap | None = None,
        weight_version: int = 0,
    ) -> None:
        self.pool = pool
        self.swap = swap
        self.max_step_tokens = max_step_tokens
        self.max_queued = max_queued
        self.lookahead = 0
        """Maximum number of draft tokens per request in the next step."""
        self.counters = Counters()
        self._prefixes = Prefixes(pool, weight_version)
        self._running = Running(pool, self._prefixes, max_num_seqs)
        self._waiting = WaitingQueue()
        self._seats = BatchingPolicy(max_num_seqs, batching)
        self._admission = Admission(
            pool, self._prefixes, self._running, self._waiting, self._seats, swap, self.counters
        )

    @property
    def weight_version(self) -> int:
        return self._prefixes.weight_version

    @property
    def running(self) -> list[Request]:
        """Running requests in order, without followers."""
        return self._running.leaders

    @property
    def num_running(self) -> int:
        """Number of running samples, followers included."""
        return self._running.count

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def holding(self) -> bool:
        return self._waiting.holding

    @property
    def has_work(self) -> bool:
        return bool(self.running) or len(self._waiting) > 0

    @property
    def in_progress(self) -> bool:
        """Whether a started request is unfinished: it runs, or waits only because it was preempted."""
        return bool(self.running) or self._waiting.in_progress

    def hold(self) -> None:
        """Lets started requests continue; other requests stay in the queue until `release`."""
        self._waiting.hold()

    def release(self) -> None:
        self._waiting.release()

    def check_room(self, count: int = 1) -> None:
        waiting = len(self._waiting)
        if waiting + count > self.max_queued:
            raise Overloaded(
                f"{waiting} requests are waiting already (limit {self.max_queued}). Try again later.",
                code="queue_full",
            )

    def add(self, request: Request) -> None:
        self.check_room()
        self._waiting.push(request)

    def finish(self, request: Request) -> None:
        """Removes a request in any state; its published blocks stay in the prefix cache."""
        if request.state == "waiting":
            self._waiting.remove(request)
            self._admission.drop_copies(request)
        elif request.state == "running":
            self.finish_all([request])
        request.state = "finished"

    def finish_all(self, requests: Sequence[Request]) -> None:
        """Like `finish` for several running requests, in one pass."""
        self._running.end(requests)

    def fork(self, leader: Request) -> None:
        """Forks samples after leader and followers have drawn their next tokens; samples with the same tokens stay
        together."""
        for request in self._running.fork(leader):
            self._wait_again(request)

    def schedule(self) -> StepPlan:
        preempted: list[Request] = []
        budget, behind = self._plan_decodes(self.max_step_tokens, preempted)
        budget = self._plan_chunks(behind, budget, preempted)
        self._seats.open(not self.running, len(self._waiting))
        admitted = [] if preempted else self._admission.admit(budget)
        ahead: list[Request] = []
        if self.lookahead:
            beginning = {id(request) for request in admitted}
            ahead = make_room(self.running, beginning, self.lookahead, self.max_step_tokens, self.pool)
        swap_out, swap_in = ([], []) if self.swap is None else self.swap.flush()
        return StepPlan(
            decodes=[request for request in self.running if request.planned == 1],
            chunks=[request for request in self.running if request.planned > 1],
            admitted=admitted,
            preempted=preempted,
            copies=self._running.take_copies(),
            ahead=ahead,
            swap_out=swap_out,
            swap_in=swap_in,
        )

    def commit(self, plan: StepPlan) -> None:
        """Accounts for a computed plan: advances its requests and publishes the blocks that became full."""
        size, moved = self.pool.block_size, 0
        for request in (*plan.decodes, *plan.chunks):
            moved += request.planned
            request.computed += request.planned
            request.planned = 0
        self.counters.moved += moved
        for request in plan.decodes:
            if request.computed % size == 0:
                self._leave_behind(request)
        for request in plan.chunks:
            self._leave_behind(request)

    def commit_drafts(self, requests: Sequence[Request]) -> None:
        """Settles the draft tokens of `requests`: accepted tokens are computed, and the blocks of rejected ones are
        released."""
        size = self.pool.block_size
        for request in requests:
            request.ahead = 0
            request.proposed = []
            request.computed = len(request.tokens) - 1
            request.published = min(request.published, request.computed // size)
            self.pool.shrink(request, len(request.tokens))
            self._leave_behind(request)

    def set_weight_version(self, version: int) -> None:
        """Removes the old version's blocks from the prefix cache. Running requests publish no further blocks, because
        those would depend on old keys and values."""
        self._prefixes.set_weight_version(version)
        for request in self.running:
            request.publishable = False
            request.claim = None

    def preempt_all(self) -> None:
        """Preempts all running requests for recomputation and empties the prefix cache, because the KV cache is about
        to be released."""
        while self.running:
            self._preempt(self.running.pop(), [], swaps=False)
        self._running.take_copies()  # their blocks no longer exist
        self.pool.forget()

    def _plan_decodes(self, budget: int, preempted: list[Request]) -> tuple[int, list[Request]]:
        """Plans the decodes. Returns the remaining budget, and the requests with more than one token to compute."""
        running, size = self.running, self.pool.block_size
        behind: list[Request] = []
        i = 0
        while i < len(running) and budget > 0:
            request = running[i]
            i += 1
            if len(request.tokens) - request.computed != 1:
                behind.append(request)
                continue
            if request.computed % size == 0 and self.pool.missing(request, request.computed + 1):
                budget += self._make_room(request, 1, preempted)
                if request.state != "running":
                    break
                self.pool.grow(request, request.computed + 1)
            request.planned = 1
            budget -= 1
        return budget, behind

    def _plan_chunks(self, behind: list[Request], budget: int, preempted: list[Request]) -> int:
        """Plans chunks. Returns the remaining budget."""
        for request in behind:
            if budget <= 0:
                break
            if request.state != "running":
                continue
            count = self.pool.piece(request, request.tables, budget)
            need = self.pool.missing(request, request.computed + count)
            budget += self._make_room(request, need, preempted)
            if request.row < 0:
                break
            self.pool.grow(request, request.computed + count)
            request.planned = count
            budget -= count
        return budget

    def _make_room(self, request: Request, need: int, preempted: list[Request]) -> int:
        """Preempts requests, last in order first, until `need` blocks are available or `request` itself is preempted.
        Returns the number of tokens that the preempted requests had planned."""
        returned = 0
        while need > self.pool.available:
            victim = self.running.pop()
            returned += victim.planned
            self._preempt(victim, preempted)
            if victim is request:
                break
        return returned

    def _preempt(self, victim: Request, preempted: list[Request], swaps: bool = True) -> None:
        followers, victim.followers = victim.followers, []
        self.pool.let_pass(victim)
        swapped = self.swap if swaps and self.swap is not None and self.swap.keep(victim) else None
        self._running.vacate(victim)
        for rider in followers:
            self._running.detach(rider)
            if swapped is not None:
                swapped.ride(rider, victim)
        for request in (victim, *followers):
            self._wait_again(request)
            preempted.append(request)

    def _wait_again(self, request: Request) -> None:
        if request.host:
            self.counters.swaps += 1
        else:
            request.cached = request.computed = 0
        request.published = 0
        request.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.push(request)

    def _leave_behind(self, request: Request) -> None:
        """Publishes the request's computed blocks and releases the blocks outside the windows."""
        self._prefixes.publish(request)
        self.pool.let_pass(request)
