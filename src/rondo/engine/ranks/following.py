"""Engine core of a rank other than 0: repeats rank 0's commands in order and compares digests of plans and tokens."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rondo.base.errors import RondoError
from rondo.client.engine import RunningRequests
from rondo.client.structured import StructuredOutputsParams
from rondo.client.types import GenerateRequest
from rondo.engine.ranks.outbox import RankMessage
from rondo.engine.ranks.rank_core import RankCore, digest_of_plan, digest_of_tokens
from rondo.engine.ranks.ranks import AdapterRead, RankSetup
from rondo.engine.runner.runner import StepResult
from rondo.engine.schedule.plan import StepPlan
from rondo.engine.schedule.request import Request
from rondo.engine.speculate.controller import Controller
from rondo.engine.structured.vocabulary import Vocabulary
from rondo.engine.weights.adapters import LoadedAdapter
from rondo.models.adapters.mixed import AdapterWeights
from rondo.parallel.tensor.group import RankGroup
from rondo.parallel.tensor.shard import ShardedDecoder


class Told(Controller):
    """Controller of speculative decoding that follows rank 0's decision."""

    speculates = False

    def allows(self, load: int) -> bool:
        return self.speculates

    def observe(self, load: int, seconds: float, accepted: int, speculated: bool) -> None:
        """Ignores the rank's own times."""


class FollowerRank(RankCore):
    """Core of a rank other than 0."""

    def __init__(
        self, model: ShardedDecoder, group: RankGroup, setup: RankSetup, answer: Callable[[AdapterRead], None]
    ) -> None:
        super().__init__(model, group, setup)
        self._answer = answer
        self._expected: int | None = None
        self._controller = Told()
        self._served: dict[int, AdapterWeights] = {}
        if self.speculation is not None:
            self.speculation.controller = self._controller

    def follow(self, message: RankMessage) -> None:
        together = message.together
        if together is not None:
            if together.sampled != self.sampled:
                raise RuntimeError("it sampled other tokens than rank 0")
            self._expected = together.plan
            self._controller.speculates = together.speculates
        for name, args in message.commands:
            getattr(self, name)(*args)

    def read_adapter(self, number: int, folder: Path) -> None:
        """Reads an adapter in a thread while steps continue, as on rank 0."""
        work = partial(self._read_adapter, number, folder)
        threading.Thread(target=work, name="rondo-adapters", daemon=True).start()

    def add_with(self, request: GenerateRequest, number: int, key: int) -> None:
        """Adds a request with an adapter that was read. Rank 0 provides its prefix-cache key, and manages how long it
        is loaded."""
        assert request.adapter is not None
        served = self._served[number]
        self.add(request, LoadedAdapter(request.adapter, 0, key, served, served.nbytes, old=True))

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        self.grammars.set_vocabulary(vocabulary)

    def start_grammar(self, params: StructuredOutputsParams, grammar: str) -> None:
        """Compiles a grammar while steps continue; the request that needs it is added later."""
        self.grammars.start(params, grammar)

    def forget_adapters(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._served.pop(number, None)

    def update_weights(
        self, folder: Path, version: int, requests: RunningRequests = "retain"
    ) -> list[Request]:
        # An update that fails is refused on all ranks, and rank 0 reports it.
        with contextlib.suppress(RondoError):
            return super().update_weights(folder, version, requests)
        return []

    def sleep(self, level: int = 1) -> None:
        super().sleep(level)
        self.group.least(0)

    def wake(self, tags: Sequence[str] | None = None) -> None:
        super().wake(tags)
        self.group.least(0)

    def _compute(self, plan: StepPlan) -> StepResult:
        if digest_of_plan(plan) != self._expected:
            raise RuntimeError("it planned another step than rank 0")
        self._expected = None
        result = super()._compute(plan)
        self.sampled = digest_of_tokens(result)
        return result

    def _read_adapter(self, number: int, folder: Path) -> None:
        rank = self.group.rank
        try:
            self._served[number], content = self.adapters.reader.read(folder)
        except Exception as error:
            answer = AdapterRead(rank, number, refused=str(error) or type(error).__name__)
        else:
            answer = AdapterRead(rank, number, content)
        self._answer(answer)
