"""Speculation as the engine's core sees it: when, by how much, who proposes, and what came of it."""

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
        """Sets `proposed` of each: at most `ahead` tokens, or none."""

    def sleep(self, level: int) -> None: ...

    def wake(self, tags: Sequence[str] | None) -> None: ...


@dataclass(slots=True)
class SpeculationCounters:
    """`accepted_at` says how often the first, second, ... proposal was accepted."""

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
        """The next step's plan, and the proposals of those that may carry some."""
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
        """The step's tokens are there: what was proposed has become one of them or goes. Returns how many have.

        A request whose output is not finite may owe that to its own proposals, whose keys lie beside its. It is taken
        out of `broken` and goes on alone.
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
        """How many proposals were accepted; the next ones are more or fewer according to it."""
        count = len(request.proposed)
        # The first of the step's tokens was proposed to nobody.
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
        """Steps in which prompts are computed too say nothing about speculation."""
        plain = bool(plan.decodes) and not (plan.chunks or plan.admitted or plan.preempted)
        if self.controller is not None and plain and len(plan.decodes) == self._load:
            self.controller.observe(self._load, seconds, accepted, self.scheduler.lookahead > 0)


def _keep_to_grammar(request: Request) -> None:
    if request.matcher is not None and request.proposed:
        count = request.matcher.accepts(request.tokens, request.prompt_length, request.proposed)
        del request.proposed[count:]


def accepted_rows(requests: Sequence[Request], tokens: Sequence[int]) -> list[int]:
    """The rows whose tokens count, of rows in which a request with proposals has one more for each of them: up to the
    first token that is not the one proposed there, that one included, or up to the end of the request."""
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
