"""Agent training: any program with an OpenAI client is trained unchanged, through its own endpoint in each episode."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rondo.base.environ import minimal
from rondo.base.errors import ConfigError
from rondo.base.telemetry.log import get_logger
from rondo.base.telemetry.metrics import counter
from rondo.client.engine import Engine
from rondo.client.types import SamplingParams
from rondo.graders import Grader, Sample, Score, guarded
from rondo.rl.environments.environment import Bounds
from rondo.rl.environments.recording import Recorder
from rondo.rl.environments.segment import Segment
from rondo.rl.environments.user_code import Aside, Late
from rondo.rl.rollout.types import Rollout
from rondo.rl.tasks.types import Problem, Split
from rondo.text.tokenizer import Tokenizer

log = get_logger(__name__)

_episodes = counter("episodes", "Number of episodes by finish reason.", ("task", "finish"))

GRADER_SECONDS = 30.0
OUTPUT_BYTES = 64 << 10
"""Only the last bytes of a program's output are stored."""


@dataclass(frozen=True)
class EpisodeAddress:
    """Address of an episode. `url` is the base URL of an OpenAI client; `reward_url` accepts the reward."""

    url: str
    key: str

    @property
    def reward_url(self) -> str:
        return self.url.removesuffix("/v1") + "/reward"


class EpisodeEndpoint(Protocol):
    """Interface that opens the endpoint of an episode; `rondo.server.episodes.EpisodeDoor` implements it."""

    def opened(self, recorder: Recorder) -> AbstractAsyncContextManager[EpisodeAddress]: ...


Agent = Callable[[EpisodeAddress, Problem], Any]
"""Function that plays one episode and returns its answer: a coroutine function, or a plain function, which runs in a
thread.
"""


@dataclass(frozen=True)
class Program:
    """An agent in its own process, which reads the question from standard input and prints its answer.

    The endpoint is in the variables of OpenAI clients, OPENAI_BASE_URL and OPENAI_API_KEY, and the address for a
    reward in RONDO_REWARD_URL. Of this process's environment only the variables in `rondo.base.environ.PASSED` and in
    `pass_env` are passed on, so that no API key leaks by accident. The program runs with this process's rights:
    untrusted programs belong in a sandbox.
    """

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables."""
    folder: Path | None = None
    pass_env: Sequence[str] = ()
    """Names of further variables passed on from this process's environment."""

    def __post_init__(self) -> None:
        if isinstance(self.pass_env, str):
            raise ConfigError(
                f"pass_env is a list of variable names: write [{self.pass_env!r}].", param="pass_env"
            )

    async def __call__(self, address: EpisodeAddress, problem: Problem) -> str:
        process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**minimal(self.pass_env), **_endpoint(address), **self.env},
            cwd=self.folder,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        tails = [asyncio.create_task(_tail(stream)) for stream in (process.stdout, process.stderr)]
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # program without input
                process.stdin.write(problem.question.encode())
                await process.stdin.drain()
                process.stdin.close()
            await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also kills processes that the program left running
            await process.wait()
            said, complaint = await asyncio.gather(*tails)
        if process.returncode:
            raise RuntimeError(f"it {_end(process.returncode)}: {complaint.strip()[-500:]}")
        return said.strip()


class AgentTask:
    """A task whose problems are solved by agents. A `grader` scores the answer; without a grader the agent posts its
    reward.
    """

    def __init__(
        self,
        name: str,
        problems: Callable[[int, int, Split], list[Problem]],
        agent: Agent,
        door: EpisodeEndpoint,
        grader: Grader | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.name, self.problems = name, problems
        self.agent, self.door = agent, door
        self.bounds = bounds or Bounds(turns=32, tokens=4096)
        self.grader = None if grader is None else guarded(grader, GRADER_SECONDS, name)
        self.aside = Aside()
        self._tokenizer: Tokenizer | None = None
        self._max_model_len = 0

    @property
    def max_tokens(self) -> int:
        return self.bounds.tokens

    def prompts(self, seed: int, n: int, split: Split = "train") -> list[Problem]:
        return self.problems(seed, n, split)

    def prepare(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._tokenizer, self._max_model_len = tokenizer, max_model_len

    async def play(
        self, engine: Engine, problem: Problem, sampling: SamplingParams, seed: int, index: int
    ) -> Rollout:
        """Play one episode. A failed agent still results in a rollout with a score."""
        if self._tokenizer is None:
            raise RuntimeError(f"the task {self.name} was not prepared with a tokenizer")
        tokenizer = self._tokenizer
        recorder = Recorder(engine, tokenizer, self._max_model_len, sampling, self.bounds, seed, index)
        recorder.takes_reward = self.grader is None
        async with self.door.opened(recorder) as address:
            finish, said = await self._run(address, problem, recorder)
        score = await self._score(problem, recorder, finish, said)
        if finish in ("error", "time"):
            log.warning("an agent failed", extra={"task": self.name, "finish": finish, "detail": said})
        _episodes.labels(self.name, finish).inc()
        *earlier, last = recorder.pieces() or [Segment([])]
        branches = tuple(piece.rollout(tokenizer, "branch") for piece in earlier)
        return last.rollout(tokenizer, finish, score, branches)

    async def score(self, sample: Sample) -> Score:
        """Unused: an episode is scored when it ends."""
        return Score("error", 0.0, detail=f"{self.name} is scored in its episodes")

    def close(self) -> None:
        self.aside.close()

    async def _run(self, address: EpisodeAddress, problem: Problem, recorder: Recorder) -> tuple[str, str]:
        """The finish reason, and the answer or the error."""
        seconds = self.bounds.seconds
        try:
            if isinstance(self.agent, Program):
                async with asyncio.timeout(seconds):
                    return "stop", await self.agent(address, problem)
            return "stop", str(await self.aside.call(seconds, self.agent, address, problem) or "")
        except (Late, TimeoutError):
            return "time", f"the agent did not end within {seconds:g} s"
        except Exception as error:
            return recorder.spent or "error", f"the agent failed: {type(error).__name__}: {error}"

    async def _score(self, problem: Problem, recorder: Recorder, finish: str, said: str) -> Score:
        """The score of an episode. An agent that failed because the policy exceeded its bounds has reward 0; an agent
        that failed by itself or timed out has no valid score.
        """
        if recorder.posted is not None:
            return recorder.posted
        if finish == "time":
            return Score("timeout", 0.0, detail=said)
        if finish == "error":
            return Score("error", 0.0, detail=said)
        if finish != "stop":
            return Score("ok", 0.0, detail=said)
        if self.grader is None:
            return Score("error", 0.0, detail="the agent ended and has posted no reward")
        answer = said or (recorder.replies[-1].text if recorder.replies else "")
        return await self.grader.score(Sample(problem.question, answer, metadata=problem.facts))


def _endpoint(address: EpisodeAddress) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": address.url,
        "OPENAI_API_KEY": address.key,
        "RONDO_REWARD_URL": address.reward_url,
    }


def _end(code: int) -> str:
    return f"ended with {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"


async def _tail(stream: asyncio.StreamReader) -> str:
    kept = b""
    while more := await stream.read(1 << 14):
        kept = (kept + more)[-OUTPUT_BYTES:]
    return kept.decode(errors="replace")
