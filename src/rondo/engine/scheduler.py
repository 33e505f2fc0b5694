"""Which requests move in this step, and by how many tokens. No clock, no device: the same state gives the same plan.

One budget of tokens a step. Requests that are one token behind come first, since people wait for those; then the ones
with more to catch up, in pieces that fit; then waiting requests. When blocks run out, the running request that is last
in order gives its blocks back. Later it computes them again (or finds them in the prefix cache), or gets them from host
memory, whichever is faster (`Swap`).

Samples of one prompt run as one request, their leader, until they draw different tokens (`part`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from rondo.base.errors import Overloaded
from rondo.engine.blocks import GONE, BlockPool
from rondo.engine.queue import WaitingQueue
from rondo.engine.request import Request
from rondo.engine.speculate.room import make_room
from rondo.engine.swap import Pairs, Swap

Batching = Literal["continuous", "dynamic", "static"]

_order: Callable[[Request], tuple[int, int]] = attrgetter("order")


@dataclass(frozen=True, slots=True)
class Plan:
    """`decodes` move by one token, `chunks` by `request.planned`; both start at `request.computed`. Of the decodes,
    those in `ahead` may carry proposed tokens (see request.py), and are settled after the step.

    Before that, blocks move, (to, from) each: `copies` for samples that parted in the middle of one, `swap_out` from
    the device to the host and `swap_in` back.
    """

    decodes: list[Request]
    chunks: list[Request]
    admitted: list[Request]
    preempted: list[Request]
    copies: Pairs = field(default_factory=list)
    ahead: list[Request] = field(default_factory=list)
    swap_out: Pairs = field(default_factory=list)
    swap_in: Pairs = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self.decodes and not self.chunks


@dataclass(slots=True)
class Counters:
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    swaps: int = 0
    """Those preemptions after which nothing is computed again."""


class Scheduler:
    def __init__(
        self,
        pool: BlockPool,
        max_num_seqs: int,
        max_step_tokens: int,
        max_queued: int,
        batching: Batching = "continuous",
        swap: Swap | None = None,
    ) -> None:
        self.pool = pool
        self.swap = swap
        self.max_num_seqs = max_num_seqs
        self.max_step_tokens = max_step_tokens
        self.max_queued = max_queued
        self.batching = batching
        self.weight_version = 0
        self.lookahead = 0
        """How many proposed tokens a request may carry in the next step."""
        self.running: list[Request] = []
        self.counters = Counters()
        self._waiting = WaitingQueue()
        self._rows = list(range(max_num_seqs - 1, -1, -1))
        self._claims: set[int] = set()
        self._copies: dict[int, int] = {}
        self._places = max_num_seqs
        self._waited = 0

    @property
    def num_running(self) -> int:
        """Samples, those that ride included."""
        return self.max_num_seqs - len(self._rows)

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
        """Whether anything has begun and is not done: it runs, or waits only because it was preempted."""
        return bool(self.running) or self._waiting.in_progress

    @property
    def roomy(self) -> bool:
        """Whether the next plan finds the blocks it needs without preempting anybody."""
        size = self.pool.block_size
        need = sum(-(-len(request.tokens) // size) - len(request.blocks) for request in self.running)
        return need <= self.pool.available

    def hold(self) -> None:
        """What has begun goes on; the others stay in the queue until `release`."""
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
        """Takes a request out, whatever its state; its published blocks stay in the prefix cache."""
        if request.state == "waiting":
            self._waiting.remove(request)
            self._drop_copies(request)
        elif request.state == "running":
            self.finish_all([request])
        request.state = "finished"

    def finish_all(self, requests: Sequence[Request]) -> None:
        """As `finish` for several running requests, in one pass."""
        leaders = [request for request in requests if request.leader is None]
        for request in requests:
            request.state = "finished"
            if request.leader is not None:
                request.leader.riders.remove(request)
                self._dismount(request)
        for leader in leaders:
            self._hand_over(leader)
            self._vacate(leader)
        self.running = [request for request in self.running if request.state == "running"]

    def part(self, leader: Request) -> None:
        """Leader and riders have drawn their next tokens: those that drew another than the leader fork off, one for
        each different token; the others of that token ride on it."""
        branches: dict[int, list[Request]] = {}
        for rider in leader.riders:
            branches.setdefault(rider.tokens[-1], []).append(rider)
        leader.riders = branches.pop(leader.tokens[-1], [])
        for first, *others in branches.values():
            self._fork(leader, first, others)

    def schedule(self) -> Plan:
        budget = self.max_step_tokens
        preempted: list[Request] = []
        behind: list[Request] = []
        size = self.pool.block_size
        i = 0
        while i < len(self.running) and budget > 0:
            request = self.running[i]
            i += 1
            if len(request.tokens) - request.computed != 1:
                behind.append(request)
                continue
            if len(request.blocks) * size == request.computed:
                budget += self._make_room(request, 1, preempted)
                if request.state != "running":
                    break
                request.blocks += self.pool.allocate(1)
            request.planned = 1
            budget -= 1
        for request in behind:
            if budget <= 0:
                break
            if request.state != "running":
                continue
            count = self._piece(request, request.blocks, budget)
            need = self.pool.blocks_for(request.computed + count) - len(request.blocks)
            budget += self._make_room(request, need, preempted)
            if request.row < 0:
                break
            request.blocks += self.pool.allocate(need)
            request.planned = count
            budget -= count
        self._open_batch()
        admitted = [] if preempted else self._admit(budget)
        ahead: list[Request] = []
        if self.lookahead:
            beginning = {id(request) for request in admitted}
            ahead = make_room(self.running, beginning, self.lookahead, self.max_step_tokens, self.pool)
        copies, self._copies = list(self._copies.items()), {}
        swap_out, swap_in = ([], []) if self.swap is None else self.swap.flush()
        return Plan(
            decodes=[r for r in self.running if r.planned == 1],
            chunks=[r for r in self.running if r.planned > 1],
            admitted=admitted,
            preempted=preempted,
            copies=copies,
            ahead=ahead,
            swap_out=swap_out,
            swap_in=swap_in,
        )

    def commit(self, plan: Plan) -> None:
        """The planned tokens are computed: moves the requests on and publishes the blocks that became full."""
        self.move(plan)
        self.publish(plan)

    def move(self, plan: Plan) -> None:
        """Some may have finished since they were planned."""
        for request in (*plan.decodes, *plan.chunks):
            if request.state == "running":
                request.computed += request.planned
                request.planned = 0

    def publish(self, plan: Plan) -> None:
        size = self.pool.block_size
        for request in plan.decodes:
            if request.computed % size == 0 and request.state == "running":
                self._publish(request)
                self._let_pass(request)
        for request in plan.chunks:
            if request.state == "running":
                self._publish(request)
                self._let_pass(request)

    def settle(self, requests: Sequence[Request]) -> None:
        """What `requests` carried, if anything, has become tokens or not: what has is computed, and the blocks of the
        rest go back."""
        size = self.pool.block_size
        for request in requests:
            request.ahead = 0
            request.proposed = []
            request.computed = len(request.tokens) - 1
            request.published = min(request.published, request.computed // size)
            kept = self.pool.blocks_for(len(request.tokens))
            self.pool.release(request.blocks[kept:])
            del request.blocks[kept:]
            self._publish(request)
            self._let_pass(request)

    def set_weight_version(self, version: int) -> None:
        """Blocks that hold the old version's keys and values are never found again, and a request that carries some
        publishes nothing more: its later blocks depend on them."""
        self.weight_version = version
        self.pool.forget()
        self._claims.clear()
        for request in self.running:
            request.publishable = False
            request.claim = None

    def preempt_all(self) -> None:
        """The KV cache goes: what runs waits to be computed again, and no prefix is found any more."""
        while self.running:
            self._preempt(self.running.pop(), [], swaps=False)
        self._copies = {}
        self.pool.forget()

    def _let_pass(self, request: Request) -> None:
        """Gives back the blocks that no layer sees any more."""
        if self.pool.window is None:
            return
        before, passed = request.passed, self.pool.window.passed(request.computed)
        if passed > before:
            self.pool.release(request.blocks[before:passed])
            request.blocks[before:passed] = [GONE] * (passed - before)
            request.passed = passed

    def _make_room(self, request: Request, need: int, preempted: list[Request]) -> int:
        """Preempts the last in order until `need` blocks are there or `request` itself is out. Returns the tokens
        that the preempted ones had planned."""
        returned = 0
        while need > self.pool.available:
            victim = self.running.pop()
            returned += victim.planned
            self._preempt(victim, preempted)
            if victim is request:
                break
        return returned

    def _preempt(self, victim: Request, preempted: list[Request], swaps: bool = True) -> None:
        riders, victim.riders = victim.riders, []
        self._let_pass(victim)
        swapped = self.swap if swaps and self.swap is not None and self.swap.keep(victim) else None
        self._vacate(victim)
        for rider in riders:
            self._dismount(rider)
            if swapped is not None:
                swapped.ride(rider, victim)
        for request in (victim, *riders):
            self._wait_again(request)
            preempted.append(request)

    def _wait_again(self, request: Request) -> None:
        if request.host:
            self.counters.swaps += 1
        else:
            request.cached = request.computed = request.passed = 0
        request.published = 0
        request.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.push(request)

    def _mount(self, leader: Request, rider: Request) -> None:
        """A waiting request whose tokens are the leader's."""
        self._drop_copies(rider)
        rider.state = "running"
        rider.row = self._rows.pop()
        rider.leader = leader
        self._seat(rider, leader.cached)
        leader.riders.append(rider)

    def _dismount(self, rider: Request) -> None:
        rider.leader = None
        self._rows.append(rider.row)
        rider.row = -1

    def _hand_over(self, leader: Request) -> None:
        """The leader goes: the first of its riders takes its place, blocks and all."""
        if not leader.riders:
            return
        heir, *others = leader.riders
        leader.riders = []
        heir.follow(leader)
        heir.blocks, leader.blocks = leader.blocks, []
        heir.claim, leader.claim = leader.claim, None
        self._lead(heir, others)

    def _lead(self, request: Request, riders: list[Request]) -> None:
        request.leader = None
        request.riders = riders
        for rider in riders:
            rider.leader = request
        insort(self.running, request, key=_order)

    def _fork(self, leader: Request, request: Request, riders: list[Request]) -> None:
        """Full blocks are shared; of the one that is not full yet the fork gets a copy."""
        whole, rest = divmod(leader.computed, self.pool.block_size)
        if rest and not self.pool.available:
            for each in (request, *riders):
                self._dismount(each)
                self._wait_again(each)
            return
        self.pool.share(leader.blocks[:whole])
        request.blocks = leader.blocks[:whole]
        if rest:
            (block,) = self.pool.allocate(1)
            request.blocks.append(block)
            self._copies[block] = leader.blocks[whole]
        request.follow(leader)
        self._lead(request, riders)

    def _vacate(self, request: Request) -> None:
        self.pool.release(request.blocks)
        self._unclaim(request)
        self._rows.append(request.row)
        request.blocks = []
        request.published = 0
        request.planned = 0
        request.row = -1

    def _open_batch(self) -> None:
        """Sets how many requests may begin to run. Those that were preempted have their place."""
        if self.batching == "continuous":
            self._places = self.max_num_seqs
        elif not self.running:
            waiting = len(self._waiting)
            more_come = self.batching == "static" and waiting != self._waited
            self._places = 0 if more_come and waiting < self.max_num_seqs else min(waiting, self.max_num_seqs)
            self._waited = waiting

    def _admit(self, budget: int) -> list[Request]:
        """Takes waiting requests in order while budget, rows and blocks last. One whose next block is just being
        computed by another is put off: a step later it finds that block instead of computing it twice."""
        admitted: list[Request] = []
        deferred: list[Request] = []
        while budget > 0 and self._rows and len(deferred) < self.max_num_seqs:
            request = self._waiting.pop()
            if request is None:
                break
            if request.first_cached < 0 and self._places <= 0:
                self._waiting.back(request)
                break
            if request.host:
                copies = request.host
                count = self._resume(request, budget)
                if count == 0:
                    self._waiting.back(request)
                    break
                admitted += [request, *self._gather(request, copies)]
                budget -= count
                continue
            root = self._root(request)
            # At least one token is left to compute: it gives the logits for the next.
            found = self._match(request, root, (len(request.tokens) - 1) // self.pool.block_size)
            next_key = self._next_key(request, len(found))
            if next_key is not None and next_key in self._claims:
                deferred.append(request)
                continue
            cached = len(found) * self.pool.block_size
            self.pool.share(found)
            if self._blocks_to_come(request, found) > self.pool.available:
                self.pool.release(found)
                self._waiting.back(request)
                break
            self.counters.prefix_queries += len(request.tokens)
            self.counters.prefix_hits += cached
            request.cached = request.computed = cached
            request.passed = found.count(GONE)
            count = self._enter(request, found, budget)
            self._claim(request, next_key)
            admitted += [request, *self._gather(request, [])]
            budget -= count
        for request in deferred:
            self._waiting.back(request)
        return admitted

    def _blocks_to_come(self, request: Request, found: list[int]) -> int:
        """Not only the first piece must fit: a prompt let in by halves would soon be thrown out again."""
        come = self.pool.blocks_for(len(request.tokens)) - len(found)
        if self.pool.window is None:
            return come
        return min(come, self.pool.window.most_blocks - (len(found) - found.count(GONE)))

    def _piece(self, request: Request, blocks: list[int], budget: int) -> int:
        """By how many tokens it moves. Under a window it never needs room for all of them at once, so that its piece
        is cut to what is free, and nobody else has to give way."""
        count = min(request.remaining, budget)
        if self.pool.window is None:
            return count
        room = (len(blocks) + self.pool.available) * self.pool.block_size - request.computed
        return max(1, min(count, room))

    def _resume(self, request: Request, budget: int) -> int:
        """A swapped request goes on where it was: by how many tokens, or 0 if it does not fit. What the prefix cache
        still has of it does not move."""
        request.publishable &= request.weight_version == self.weight_version
        found: list[int] = [GONE] * request.passed
        if request.publishable:
            whole = request.computed // self.pool.block_size
            found += self._match(request, self.pool.root(request.weight_version, request.adapter_key), whole)[
                request.passed :
            ]
        self.pool.share(found)
        if self._blocks_to_come(request, found) > self.pool.available:
            self.pool.release(found)
            return 0
        count = self._enter(request, found, budget)
        assert self.swap is not None
        self.swap.restore(request, request.blocks[len(found) : self.pool.blocks_for(request.computed)])
        return count

    def _gather(self, leader: Request, copies: list[int]) -> list[Request]:
        """The other samples of the prompt that wait with the same tokens come along; `copies` are the host blocks
        that the leader came back from, so that nobody gets other keys and values than their own."""
        gathered = []
        for sibling in leader.siblings:
            if not self._rows:
                break
            if sibling.first_cached < 0 and self._places <= 0:
                continue
            if (
                sibling.state == "waiting"
                and sibling.tokens == leader.tokens
                and sibling.host == copies
                and self._waiting.take(sibling)
            ):
                self._mount(leader, sibling)
                gathered.append(sibling)
        return gathered

    def _seat(self, request: Request, cached: int) -> None:
        if request.first_cached < 0:
            request.first_cached = cached
            self._places -= 1

    def _drop_copies(self, request: Request) -> None:
        if request.host and self.swap is not None:
            self.swap.drop(request)

    def _enter(self, request: Request, found: list[int], budget: int) -> int:
        """Lets it run on from `computed` with what was found of it; returns by how many tokens."""
        count = self._piece(request, found, budget)
        fresh = self.pool.blocks_for(request.computed + count) - len(found)
        self._waiting.taken()
        request.state = "running"
        request.row = self._rows.pop()
        request.blocks = found + self.pool.allocate(fresh)
        request.published = len(found)
        self._seat(request, request.cached)
        request.planned = count
        insort(self.running, request, key=_order)
        return count

    def _root(self, request: Request) -> int:
        if request.weight_version != self.weight_version:
            request.weight_version = self.weight_version
            request.keys = []
        request.publishable = self.pool.prefix_cache
        return self.pool.root(request.weight_version, request.adapter_key)

    def _match(self, request: Request, root: int, limit: int) -> list[int]:
        if not self.pool.prefix_cache:
            return []
        self.pool.extend_keys(request.keys, root, request.tokens)
        return self.pool.match(request.keys, root, request.tokens, limit)

    def _next_key(self, request: Request, block: int) -> int | None:
        """The chain key of the first block this request computes for others to find; None if it will fill none."""
        whole = (len(request.tokens) - 1) // self.pool.block_size
        return request.keys[block] if request.publishable and block < min(whole, len(request.keys)) else None

    def _claim(self, request: Request, key: int | None) -> None:
        if key is not None:
            request.claim = key
            self._claims.add(key)

    def _unclaim(self, request: Request) -> None:
        if request.claim is not None:
            self._claims.discard(request.claim)
            request.claim = None

    def _publish(self, request: Request) -> None:
        if not request.publishable:
            return
        size = self.pool.block_size
        root = self.pool.root(request.weight_version, request.adapter_key)
        full = request.computed // size
        if len(request.keys) < full:
            self.pool.extend_keys(request.keys, root, request.tokens)
        while request.published < full:
            i = request.published
            parent = request.keys[i - 1] if i else root
            if not self.pool.publish(
                request.blocks[i], request.keys[i], parent, request.tokens[i * size : (i + 1) * size]
            ):
                request.publishable = False
                break
            request.published += 1
        if request.claim is not None:
            self._unclaim(request)
            self._claim(request, self._next_key(request, request.published))
