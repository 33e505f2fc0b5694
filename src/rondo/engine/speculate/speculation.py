"""Speculative decoding in the engine core: planning, proposing and accepting draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from rondo.engine.runner.runner import Runner, StepResult
from rondo.engine.schedule.plan import StepPlan
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.scheduler import Scheduler
from rondo.engine.speculate.controller import Controller
from rondo.ops import NO_TOKEN


class Proposer(Protocol):
    def propose(self, requests: Sequence[Request]) -> None:
        """Sets `proposed` of each request: at most `ahead` tokens, or none."""

    def sleep(self, level: int) -> None: ...

    def wake(self, tags: Sequence[str] | None) -> None: ...


@dataclass(slots=True)
class SpeculationCounters:
    """Counters; `accepted_at` has the number of acceptances of the first, second, ... draft token."""

    drafts: int = 0
    proposed: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)


class Speculation:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        proposer: Proposer,
        most: int,
        controller: Controller | None,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.proposer = proposer
        self.most = most
        self.controller = controller
        self.counters = SpeculationCounters(accepted_at=[0] * most)
        self._load = 0

    def plan(self) -> StepPlan:
        """The next step's plan, with draft tokens for the requests in `ahead`."""
        self._load = load = len(self.scheduler.running)
        allowed = load > 0 and (self.controller is None or self.controller.allows(load))
        self.scheduler.lookahead = self.most if allowed else 0
        plan = self.scheduler.schedule()
        if not plan.ahead:
            return plan
        self.proposer.propose(plan.ahead)
        for request in plan.ahead:
            _keep_to_grammar(request)
        self.scheduler.commit_drafts([request for request in plan.ahead if not request.proposed])
        return replace(plan, ahead=[request for request in plan.ahead if request.proposed])

    def commit_drafts(self, plan: StepPlan, result: StepResult, broken: list[Request]) -> int:
        """Settles the draft tokens after a step. Returns the number of accepted ones.

        Non-finite output of a request may be caused by its draft tokens, whose keys are stored in its blocks. Such a
        request is removed from `broken` and continues without speculation.
        """
        assert result.sampled is not None
        accepted = sum(self._count(request) for request in plan.ahead)
        if NO_TOKEN in result.sampled.tokens:
            for request, token in zip(result.requests, result.sampled.tokens, strict=True):
                if token == NO_TOKEN and request.proposed:
                    self.runner.cache.clean(request.tables)
                    request.most_ahead = 0
            if any(request.proposed for request in broken):
                self.scheduler.pool.forget()
                broken[:] = [request for request in broken if not request.proposed]
        self.scheduler.commit_drafts(plan.ahead)
        return accepted

    def _count(self, request: Request) -> int:
        """Counts the accepted draft tokens and adapts the number of the next ones."""
        count = len(request.proposed)
        # The first token of the step is sampled, not proposed.
        accepted = max(request.remaining - 1, 0)
        self.counters.drafts += 1
        self.counters.proposed += count
        self.counters.accepted += accepted
        for place in range(accepted):
            self.counters.accepted_at[place] += 1
        if accepted == count:
            request.most_ahead = min(2 * request.most_ahead, self.most)
        elif not accepted:
            request.most_ahead = max(count // 2, 1)
        return accepted

    def observe(self, plan: StepPlan, accepted: int, seconds: float) -> None:
        """Passes the step's time to the controller; steps with prefill are excluded."""
        plain = bool(plan.decodes) and not (plan.chunks or plan.admitted or plan.preempted)
        if self.controller is not None and plain and len(plan.decodes) == self._load:
            self.controller.observe(self._load, seconds, accepted, self.scheduler.lookahead > 0)


def _keep_to_grammar(request: Request) -> None:
    if request.matcher is not None and request.proposed:
        count = request.matcher.accepts(request.tokens, request.prompt_length, request.proposed)
        del request.proposed[count:]


def accepted_rows(requests: Sequence[Request], tokens: Sequence[int]) -> list[int]:
    """Rows whose tokens count. A request has one row, plus one per draft token; its rows count up to the first token
    that differs from its draft token, inclusive, or up to the end of the request."""
    rows: list[int] = []
    row = 0
    while row < len(requests):
        request = requests[row]
        rows.append(row)
        for place, proposal in enumerate(request.proposed):
            if tokens[row + place] != proposal or proposal in request.stop_ids:
                break
            rows.append(row + place + 1)
        row += 1 + len(request.proposed)
    return rows
