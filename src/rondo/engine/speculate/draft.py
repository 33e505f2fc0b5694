"""Draft tokens from a smaller model with the same vocabulary.

The draft model stores its own keys and values in the blocks of the request in the first group of layers, where no block
is released early. It draws with the same random numbers as the target model: where the two distributions are alike, so
are the draws, at any temperature. Errors of the draft (its weights, or blocks that it has never computed) only reduce
the acceptance rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rondo.engine.runner.runner import Runner
from rondo.engine.schedule.plan import StepPlan
from rondo.engine.schedule.request import Request
from rondo.engine.weights.sleep import Sleeper
from rondo.ops import NO_TOKEN


@dataclass(slots=True)
class DraftState:
    """The draft's copy of a request: `own` has the request's tokens as of the last call, `sure` of them, followed by
    the draft tokens. The keys of its first `noted` blocks are recorded."""

    source: Request
    preemptions: int
    own: Request
    sure: int = 0
    noted: int = 0


class DraftProposer:
    def __init__(self, runner: Runner, sleeper: Sleeper, max_step_tokens: int, max_length: int) -> None:
        self.runner = runner
        self.sleeper = sleeper
        self.max_step_tokens = max_step_tokens
        self.max_length = max_length
        self._followers: dict[int, DraftState] = {}
        self._keys: list[int | None] = [None] * runner.cache.num_blocks[0]
        """For each block: hash key of the full block that the draft has computed in it."""

    def propose(self, requests: Sequence[Request]) -> None:
        """The draft first computes the tokens that it has not processed yet, then draws one token per
        request and step."""
        fitting = [r for r in requests if len(r.tokens) + r.ahead <= self.max_length]
        entered: list[Request] = []
        followers = [self._follow(request, entered) for request in fitting]
        plan = self._catch_up([follower.own for follower in followers], entered)
        while not plan.empty:
            going = self._advance(plan)
            plan = StepPlan(decodes=going, chunks=[], admitted=[], preempted=[])
        for follower in followers:
            self._hand_over(follower)

    def sleep(self, level: int) -> None:
        self.sleeper.sleep(level)
        self._followers.clear()
        self._keys = [None] * self.runner.cache.num_blocks[0]

    def wake(self, tags: Sequence[str] | None) -> None:
        self.sleeper.wake(tags)

    def _follow(self, source: Request, entered: list[Request]) -> DraftState:
        follower = self._followers.get(source.row)
        if (
            follower is None
            or follower.source is not source
            or follower.preemptions != source.preemptions
            or follower.own.tables[0] is not source.tables[0]
        ):
            follower = self._followers[source.row] = self._new(source)
            entered.append(follower.own)
        own, common = follower.own, follower.sure
        shared = min(len(own.tokens), len(source.tokens))
        while common < shared and own.tokens[common] == source.tokens[common]:
            common += 1
        own.tokens[common:] = source.tokens[common:]
        own.computed = min(own.computed, common, len(source.tokens) - 1)
        own.ahead = source.ahead
        follower.sure = len(source.tokens)
        for block in own.tables[0].blocks[own.computed // self.runner.cache.block_size :]:
            self._keys[block] = None
        return follower

    def _new(self, source: Request) -> DraftState:
        own = Request(
            source.id,
            source.index,
            source.tokens.copy(),
            source.sampling,
            source.max_length,
            source.arrival,
            seed=source.seed,
            row=source.row,
            tables=source.tables[:1],
            stop_ids=source.stop_ids,
        )
        own.prompt_length = source.prompt_length
        for block, key in zip(source.tables[0].blocks, source.keys, strict=False):
            if self._keys[block] != key:
                break
            own.computed += self.runner.cache.block_size
        known = own.computed // self.runner.cache.block_size
        return DraftState(source, source.preemptions, own, sure=len(source.tokens), noted=known)

    def _catch_up(self, requests: list[Request], entered: list[Request]) -> StepPlan:
        """Plans like the scheduler: single tokens first, then chunks, within one budget."""
        budget = self.max_step_tokens
        for request in sorted(requests, key=lambda request: request.remaining):
            request.planned = min(request.remaining, budget)
            budget -= request.planned
        return StepPlan(
            decodes=[request for request in requests if request.planned == 1],
            chunks=[request for request in requests if request.planned > 1],
            admitted=entered,
            preempted=[],
        )

    def _advance(self, plan: StepPlan) -> list[Request]:
        """Runs the plan; returns the requests that received a token and need another."""
        step = self.runner.prepare(plan)
        logits = self.runner.forward(step)
        for request in (*plan.decodes, *plan.chunks):
            request.computed += request.planned
            request.planned = 0
        if logits is None or step.batch is None:
            return []
        going = []
        tokens: list[int] = self.runner.sampler.choose(logits, step.batch).tolist()
        for request, token in zip(step.requests, tokens, strict=True):
            if token == NO_TOKEN:
                self.runner.cache.clean(request.tables)
                continue
            request.tokens.append(token)
            request.ahead -= 1
            if request.ahead > 0 and token not in request.stop_ids:
                request.planned = 1
                going.append(request)
        return going

    def _hand_over(self, follower: DraftState) -> None:
        """Passes the draft tokens to the request and records the keys of the draft's full blocks."""
        own, source = follower.own, follower.source
        source.proposed = own.tokens[follower.sure :]
        size = self.runner.cache.block_size
        full = min(min(follower.sure, own.computed) // size, len(source.keys))
        for i in range(follower.noted, full):
            self._keys[own.tables[0].blocks[i]] = source.keys[i]
        follower.noted = max(follower.noted, full)
        (tables,) = self.runner.tables
        tables.doubt(own, follower.sure - 1)
