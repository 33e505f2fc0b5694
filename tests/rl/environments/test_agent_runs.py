"""Whole RL steps whose samples agents play: each asks the engine that is trained by an endpoint of its own."""

import sys
import zlib
from pathlib import Path
from typing import Any

import torch

from rondo.graders import Sample, Score
from rondo.rl.config import RlConfig
from rondo.rl.environments.agents import AgentTask, Program
from rondo.rl.environments.environment import Bounds
from rondo.rl.loop import Loop
from rondo.rl.rollout.types import RlStep
from rondo.rl.tasks.types import Problem, Split
from rondo.server.episodes import EpisodeRoutes
from support.tiny import tiny_model, tiny_tokenizer

PROGRAM = Path(__file__).with_name("asking_agent.py")
DIES = """
import json, os, signal, sys, urllib.request
def ask(path, body):
    key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    base = os.environ["OPENAI_BASE_URL"]
    return json.load(urllib.request.urlopen(urllib.request.Request(base + path, json.dumps(body).encode(), key)))
made = ask("/chat/completions", {"model": "m", "messages": [{"role": "user", "content": sys.stdin.read()}], "n": 1})
print(made["choices"][0]["message"]["content"])
number = len(os.listdir(os.environ["PLACE"]))
while True:
    try:
        os.mkdir(os.path.join(os.environ["PLACE"], str(number)))
        break
    except FileExistsError:
        number += 1
if number % 4 == 1:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(2 if number % 4 == 2 else 0)
"""
CONFIG = RlConfig(
    prompts_per_step=2, samples_per_prompt=4, steps=3, lr=1e-2, tokens_per_microbatch=512, max_tokens=12
)


def problems(seed: int, n: int, split: Split = "train") -> list[Problem]:
    return [Problem(f"ask {seed} and {i}", {}) for i in range(n)]


class Varied:
    """The same answer has the same reward, whatever it says."""

    async def score(self, sample: Sample) -> Score:
        return Score("ok", zlib.crc32(sample.completion.encode()) % 5 / 4)


def loop_of(agent: Any, **changes: Any) -> tuple[Loop, list[RlStep]]:
    goal = AgentTask("agents", problems, agent, EpisodeRoutes(), Varied(), Bounds(turns=4, tokens=64))
    loop, told = Loop(tiny_model(), tiny_tokenizer(), goal, CONFIG.model_copy(update=changes)), list[RlStep]()
    loop.observers.append(told.append)
    return loop, told


def test_a_program_is_trained_by_what_it_asks_with_openais_client() -> None:
    loop, told = loop_of(Program([sys.executable, str(PROGRAM)]), prompts_per_step=1, samples_per_prompt=3)
    before = [p.detach().clone() for p in loop.learner.model.parameters()]
    with loop:
        metrics = [loop.step() for _ in range(2)]
    assert [each["unjudged"] for each in metrics] == [0, 0]
    assert [each["weight_version"] for each in metrics] == [0, 1], "it is asked of the weights as they are"
    assert all(each["logprob_diff_max"] < 2e-5 for each in metrics), (
        "tokens and probabilities are the engine's own"
    )
    assert any(not torch.equal(a, b) for a, b in zip(before, loop.learner.model.parameters(), strict=True))
    for step in told:
        for sample in (sample for group in step.groups for sample in group.samples):
            assert sample.finish_reason == "stop"
            assert sum(sum(piece.sampled) for piece in sample.pieces) <= 12
            assert {version for piece in sample.pieces for version in piece.versions} == {step.version}


def test_an_agent_that_dies_is_not_judged_and_the_others_are_learned_from(tmp_path: Path) -> None:
    """Of eight two kill themselves, and two end with an error."""
    loop, told = loop_of(Program([sys.executable, "-c", DIES], env={"PLACE": str(tmp_path)}))
    with loop:
        metrics = loop.step()
    samples = [sample for group in told[0].groups for sample in group.samples]
    failed = [sample for sample in samples if not sample.judged]
    assert {sample.finish_reason for sample in failed} == {"error"}
    details = sorted(sample.score.detail for sample in failed if sample.score)
    for detail, said in zip(details, ["ended with 2"] * 2 + ["was killed by SIGKILL"] * 2, strict=True):
        assert detail.startswith(f"the agent failed: RuntimeError: it {said}")
    assert metrics["unjudged"] == metrics["failed/error"] == 4
    assert metrics["updates"] == 1
    for group, advantages in zip(told[0].groups, told[0].advantages, strict=True):
        for sample, own in zip(group.samples, advantages, strict=True):
            assert sample.trained > 0, "what it had asked is there to look at"
            assert sample.judged or not any(own)
