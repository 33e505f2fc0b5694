"""Asynchronous rollouts: an engine in its own thread generates groups during training, within the staleness limit.

Each group is a coroutine. It sends the request, scores each sample as soon as the sample is complete, and resamples
the group if necessary. The groups of a step follow from the group numbers, not from the order of completion. A weight
push interrupts the running requests, which continue with the next weights; each token records the weight version that
generated it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from rondo.base.errors import RondoError, Unavailable
from rondo.base.ids import new_id
from rondo.base.telemetry.log import get_logger
from rondo.client.types import GenerateRequest, SamplingParams, TokenChunk
from rondo.rl.config import RlConfig
from rondo.rl.record.timer import LoopTimer
from rondo.rl.rollout.prompt_sampler import PromptSampler
from rondo.rl.rollout.requests import RolloutBatch, RolloutBuilder
from rondo.rl.rollout.staleness import admitted
from rondo.rl.rollout.types import Rollout, SampleGroup, packed_up, unpacked
from rondo.rl.tasks.types import Problem
from rondo.train.evaluation.evaluator import Metrics

log = get_logger(__name__)
T = TypeVar("T")

LOOK_SECONDS = 1.0
"""Seconds between two checks for a failed group while the learner waits."""


class Answers(Protocol):
    """Interface of a local or remote engine that a group uses."""

    @property
    def max_model_len(self) -> int: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]: ...


class Pushes(Protocol):
    """Interface that pushes weights to the engine and shuts the engine down."""

    @property
    def version(self) -> int: ...

    def update(self, version: int) -> AbstractContextManager[None]: ...

    def metrics(self) -> Metrics:
        """Counts of recovered engine failures since the last call."""

    def close(self) -> None: ...


class EventLoop:
    """An asyncio event loop in its own thread, for synchronous callers."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="rondo-rollouts", daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine in the loop and return its result in the caller's thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


class AsyncCollector:
    def __init__(
        self,
        engine: Answers,
        builder: RolloutBuilder,
        draws: PromptSampler,
        pushes: Pushes,
        events: EventLoop,
    ) -> None:
        self.engine, self.builder, self.draws, self.pushes, self._events = (
            engine,
            builder,
            draws,
            pushes,
            events,
        )
        self.staleness = builder.config.staleness
        self._steps_done = 0
        self._next = 0
        self._last = builder.config.steps * draws.prompts_per_step
        """The number after the last admissible group; later groups start only on request."""
        self._made: dict[int, tuple[SampleGroup, int]] = {}
        """Complete groups by number, each with its number of resampling attempts."""
        self._answered: set[int] = set()
        """Numbers of generated groups whose scores are pending."""
        self._dropped: dict[int, list[SampleGroup]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._judging = asyncio.Lock()
        self._judges_at_once = _judges_at_once(builder.config)

    @property
    def version(self) -> int:
        return self.pushes.version

    def collect(self, step: int, clock: LoopTimer) -> RolloutBatch:
        count = self.draws.prompts_per_step
        numbers = range(step * count, (step + 1) * count)
        self._last = max(self._last, numbers.stop)
        self._events.loop.call_soon_threadsafe(self._admit)
        with clock("rollout"):
            self._wait(lambda: all(n in self._made or n in self._answered for n in numbers))
        with clock("score"):
            self._wait(lambda: all(n in self._made for n in numbers))
            made = [self._made.pop(number) for number in numbers]
            groups = [group for group, _ in made]
            whole = groups if self._judges_at_once else self.builder.company.judged(groups)
        found = RolloutBatch(whole, engine=self.pushes.metrics())
        for number, (group, attempts) in zip(numbers, made, strict=True):
            dropped = self._dropped.pop(number, [])
            found.dropped += dropped
            found.counts["drawn_again"] += len(dropped)
            found.counts["too_long"] += attempts - len(dropped)
            found.counts["empty"] += not group.samples
        return found

    def answer(
        self, problems: Sequence[Problem], sampling: SamplingParams, seeds: Sequence[int]
    ) -> list[SampleGroup]:
        async def all_of_them() -> list[SampleGroup]:
            asked = [self._answer(p, sampling, seed) for p, seed in zip(problems, seeds, strict=True)]
            return await asyncio.gather(*asked)

        return self._events.do(all_of_them())

    @contextmanager
    def pushing(self, version: int) -> Iterator[None]:
        with self.pushes.update(version):
            yield

    def trained(self, steps_done: int) -> None:
        self._steps_done = steps_done
        self._events.loop.call_soon_threadsafe(self._admit)

    def graded(self) -> float:
        return self.builder.scorer.at_work

    def state(self) -> dict[str, Any]:
        """State of the complete groups. Groups in progress are regenerated after a resume."""
        with self._changed:
            made = sorted(self._made.items())
        return {"made": [[number, attempts, packed_up(group)] for number, (group, attempts) in made]}

    def restore(self, state: dict[str, Any], steps_done: int) -> None:
        for number, attempts, group in state.get("made", []):
            self._made[number] = unpacked(group, self.draws.problem(number, attempts)), attempts
        self._next = steps_done * self.draws.prompts_per_step
        self._steps_done = steps_done

    def close(self) -> None:
        async def stop() -> None:
            await _end(set(self._tasks.values()))
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            await _end(rest)  # also tasks started by other tasks, such as the server of agent episodes

        with contextlib.suppress(TimeoutError):
            self._events.do(stop(), 10)
        self.builder.scorer.close()
        self.pushes.close()
        self._events.close()

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._changed:
            while not until():
                if self._failure is not None:
                    raise self._failure
                self._changed.wait(LOOK_SECONDS)

    # The methods below run in the event loop's thread.

    def _admit(self) -> None:
        """Start every group that the staleness limit admits."""
        end = min(self._last, admitted(self._steps_done, self.draws.prompts_per_step, self.staleness))
        for number in range(self._next, end):
            if number not in self._made:
                self._tasks[number] = asyncio.ensure_future(self._make(number))
        self._next = max(self._next, end)

    async def _make(self, number: int) -> None:
        try:
            group, attempts = await self._group(number)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not isinstance(error, RondoError):
                log.exception("a group could not be made")
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            return
        finally:
            self._tasks.pop(number, None)
        with self._changed:
            self._made[number] = group, attempts
            self._answered.discard(number)
            self._changed.notify_all()

    async def _group(self, number: int) -> tuple[SampleGroup, int]:
        attempt = 0
        while True:
            seed = self.draws.sampling_seed(number, attempt)
            problem = self.draws.problem(number, attempt)
            group = await self._answer(problem, self.builder.sampling, seed, number)
            if self._judges_at_once:
                async with self._judging:
                    (group,) = await asyncio.to_thread(self.builder.company.judged, [group])
            why = self.builder.again(group, attempt)
            if why is None:
                return group, attempt
            with self._changed:
                self._answered.discard(number)
                if group.samples:
                    self._dropped.setdefault(number, []).append(group)
            attempt += 1

    async def _answer(
        self, problem: Problem, sampling: SamplingParams, seed: int, number: int | None = None
    ) -> SampleGroup:
        play = getattr(self.builder.task, "play", None)
        if play is not None:
            turns = (play(self.engine, problem, sampling.with_(n=1), seed, i) for i in range(sampling.n))
            played = [await self.builder.judged(problem, done) for done in await asyncio.gather(*turns)]
            return SampleGroup(problem, played[0].prompt_ids or [], played)
        prompt = self.builder.prompt(problem)
        if prompt is None:
            return SampleGroup(problem, [], [])
        fitting = self.builder.fitting(sampling, prompt).with_(seed=seed)
        request = GenerateRequest(new_id("rl"), prompt, fitting, whole=True)
        scored = {
            index: asyncio.ensure_future(self.builder.judged(problem, rollout))
            async for index, rollout in self._samples(request)
        }
        if number is not None:
            with self._changed:
                self._answered.add(number)
                self._changed.notify_all()
        return SampleGroup(problem, prompt, [await scored[index] for index in sorted(scored)])

    async def _samples(self, request: GenerateRequest) -> AsyncIterator[tuple[int, Rollout]]:
        """Yield each sample as soon as it ends."""
        chunks: dict[int, TokenChunk] = {}
        async with contextlib.aclosing(self.engine.generate(request)) as stream:
            async for chunk in stream:
                known = chunks.setdefault(chunk.index, chunk)
                if known is not chunk:
                    known.extend(chunk)
                if known.finish_reason is not None:
                    yield known.index, _rollout(known)
        ended = sum(chunk.finish_reason is not None for chunk in chunks.values())
        if ended < request.sampling.n:
            raise Unavailable(f"the engine left {request.sampling.n - ended} samples of a prompt unanswered.")


async def _end(tasks: Set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _judges_at_once(config: RlConfig) -> bool:
    """True if the reward model scores each group on its own. Dynamic sampling needs the rewards to decide whether a
    group is resampled; otherwise the reward model scores all groups of a step in one batch.
    """
    return bool(config.dynamic_sampling and config.reward_model.model)


def _rollout(chunk: TokenChunk) -> Rollout:
    count = len(chunk.token_ids)
    return Rollout(
        chunk.token_ids,
        [True] * count,
        chunk.logprobs or [0.0] * count,
        chunk.weight_versions,
        chunk.text,
        chunk.finish_reason or "abort",
    )
