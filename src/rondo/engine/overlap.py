"""The loop that overlaps: while the model computes one step, the next is planned and the one before accounted for.

The next step is planned before its tokens are known: a place is held in the request, and filled on the device with
what the step before sampled, when the model is about to run. Where the answer to "what next" depends on the token, the
request sits out until it is known: its last token by length, samples that may part, penalties, grammars. A request
that turns out to have stopped has run one step too many; what came of that is dropped. Steps run one after another, so
a block that it gave back is written by its next owner after it.

Whatever does more than add a request comes to a `stop` first; so does a plan that may have to preempt somebody.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from rondo.base.errors import ConfigError
from rondo.engine.config import EngineConfig
from rondo.engine.layout import to_device
from rondo.engine.plan import Plan
from rondo.engine.pooling import is_usable
from rondo.engine.request import Request
from rondo.engine.runner import Prepared, Runner, StepResult
from rondo.engine.sampler import Drawn
from rondo.engine.scheduler import Scheduler
from rondo.engine.step import NOTHING, Step
from rondo.ops import NO_TOKEN


def check_overlap(config: EngineConfig) -> None:
    """What cannot go together with the overlapped loop."""
    if config.overlap and config.speculation != "off":
        raise ConfigError(
            "overlap and speculation exclude each other: what to guess next is known only when a step's tokens are. "
            "Turn one of them off.",
            param="overlap",
        )
    if config.overlap and config.swap_bytes:
        raise ConfigError(
            "overlap and swap_bytes exclude each other: set swap_bytes to 0, or turn overlap off.",
            param="overlap",
        )
    if config.overlap and config.tensor_parallel > 1:
        raise ConfigError(
            "overlap needs tensor_parallel 1: several ranks go from step to step together. Turn overlap off.",
            param="overlap",
        )


HELD = 0
"""Any token: it is replaced before the model sees it."""
Places = dict[Request, int]
"""Who has a place held, and which of the step's samples comes there."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A step under way; `drawn` waits for it."""

    plan: Plan
    requests: list[Request]
    pooled: list[Request]
    drawn: Callable[[], Drawn | None]


class Overlap:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        begin: Callable[[Plan], None],
        advance: Callable[[Plan, StepResult], Step],
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._begin = begin
        self._advance = advance
        self._flight: Flight | None = None
        self._late = NOTHING
        self._error: Exception | None = None
        self._worker = ThreadPoolExecutor(1, "rondo-model") if runner.device.type == "cpu" else None

    @property
    def busy(self) -> bool:
        return self._flight is not None or self._late is not NOTHING or self._error is not None

    def step(self) -> Step:
        """Launches the next step, and returns what came of the last one."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        last, self._flight = self._flight, None
        places: Places = {}
        if last is not None:
            self._scheduler.move(last.plan)
            places = self._hold_places(last)
        if last is None or self._scheduler.roomy:
            plan = self._scheduler.schedule()
            if not plan.empty:
                self._flight = self._launch(plan, last, places)
        landed = NOTHING if last is None else self._land(last, places)
        return self.late() + landed

    def stop(self) -> None:
        """Waits for the step under way; what came of it is `late`. If it failed, the next step says so."""
        last, self._flight = self._flight, None
        if last is None:
            return
        self._scheduler.move(last.plan)
        try:
            self._late += self._land(last, {})
        except Exception as error:
            self._error = error

    def late(self) -> Step:
        """What came of steps that a stop has ended; each is told once."""
        late, self._late = self._late, NOTHING
        return late

    def _hold_places(self, last: Flight) -> Places:
        places = {request: i for i, request in enumerate(last.requests) if _goes_on(request)}
        for request in places:
            request.tokens.append(HELD)
        return places

    def _launch(self, plan: Plan, last: Flight | None, places: Places) -> Flight:
        self._begin(plan)
        step = self._runner.prepare(plan)
        rows = [row for row, request in enumerate(plan.decodes) if request in places]
        sources = [places[plan.decodes[row]] for row in rows]

        def compute() -> Drawn | None:
            if rows and last is not None:
                self._fill(step, rows, last.drawn(), sources)
            return self._runner.execute(step)

        return Flight(plan, step.requests, step.pooled, self._start(compute))

    @torch.inference_mode()
    def _fill(self, step: Prepared, rows: list[int], drawn: Drawn | None, sources: list[int]) -> None:
        assert drawn is not None
        at, source = (
            to_device(np.array(index, dtype=np.int64), self._runner.device) for index in (rows, sources)
        )
        # A token that could not be drawn ends its request: the model may compute anything for it.
        step.tokens[at] = drawn.tokens[source].clamp(min=0)

    def _start(self, compute: Callable[[], Drawn | None]) -> Callable[[], Drawn | None]:
        """On a CPU a thread computes, step after step; a GPU computes by itself once it was told what."""
        if self._worker is not None:
            return self._worker.submit(compute).result
        drawn = compute()
        return lambda: drawn

    def _land(self, last: Flight, places: Places) -> Step:
        try:
            drawn = last.drawn()
        except BaseException:
            self._flight = None  # it builds on this one
            raise
        finally:
            for request in places:
                request.tokens.pop()
        self._scheduler.publish(last.plan)
        sampled = None if drawn is None else drawn.read()
        live = [i for i, request in enumerate(last.requests) if request.state == "running"]
        if sampled is not None and len(live) < len(last.requests):
            sampled = sampled.only(live) if live else None
        pooled = [request for request in last.pooled if request.state == "running"]
        broken = (sampled is not None and NO_TOKEN in sampled.tokens) or not all(map(is_usable, pooled))
        if broken and self._flight is not None:
            self._flight.drawn()  # its blocks are about to be cleaned
        return self._advance(last.plan, StepResult([last.requests[i] for i in live], sampled, pooled))


def _goes_on(request: Request) -> bool:
    """Whether it takes another step whatever its next token is, or but for a stop token."""
    alone = request.leader is None and not request.riders
    ends = len(request.tokens) + 1 >= request.max_length
    free = request.matcher is None and not request.sampling.edits_logits
    return request.state == "running" and alone and not ends and free
