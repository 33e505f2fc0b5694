import numpy as np
import pytest
import torch

from rondo.base.errors import ConfigError
from rondo.client.types import SamplingParams
from rondo.data.batching.packing import Document, pack
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.rl.update.device_sharing import PHASES, Role, Roles, bytes_of, engine_role, parked
from rondo.train.evaluation.evaluator import Evaluator
from support.tiny import tiny_model, tiny_tokenizer

SIZES = {"engine": 40, "optimizer": 30, "critic": 30, "reference": 10, "teacher": 20, "reward_model": 10}


class Stage:
    """Who is there, and who came and went in which order."""

    def __init__(self, budget: int) -> None:
        self.moves: list[str] = []
        self.here = dict(SIZES)
        self.most = 0
        roles = [Role(name, size, self._come(name), self._go(name)) for name, size in SIZES.items()]
        self.roles = Roles(roles, budget)

    def phase(self, name: str) -> set[str]:
        self.roles.phase(name)
        self.most = max(self.most, sum(self.here.values()))
        return set(self.here)

    def _come(self, name: str):  # type: ignore[no-untyped-def]
        def come() -> None:
            assert name not in self.here
            self.moves.append(f"+{name}")
            self.here[name] = SIZES[name]

        return come

    def _go(self, name: str):  # type: ignore[no-untyped-def]
        def go() -> None:
            self.moves.append(f"-{name}")
            del self.here[name]

        return go


@pytest.mark.parametrize("budget", [60, 70, 100, 139])
def test_whom_a_phase_needs_is_there_and_all_fit(budget: int) -> None:
    stage = Stage(budget)
    for _ in range(3):
        for phase, needed in PHASES.items():
            there = stage.phase(phase)
            assert there >= set(needed)
    assert stage.most <= budget


def test_nobody_goes_without_need() -> None:
    for budget in (0, sum(SIZES.values())):
        stage = Stage(budget)
        for phase in PHASES:
            stage.phase(phase)
        assert not stage.moves


def test_who_is_needed_last_goes_first() -> None:
    stage = Stage(130)
    stage.phase("rollout")
    assert stage.moves == ["-optimizer"]
    tight = Stage(70)
    tight.roles.phase("train")
    before = len(tight.moves)
    tight.roles.phase("rollout")
    assert tight.moves[before:] == ["-optimizer", "+engine"]


def test_a_phase_that_cannot_fit_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="optimizer and critic take 60 bytes together in the phase train"
    ) as error:
        Stage(59)
    assert error.value.param == "rl.device_bytes"


def test_a_parked_model_comes_back_with_its_bits() -> None:
    model = tiny_model()
    asked = Evaluator(model)
    rows = pack([Document([3, 4, 5, 6], [1.0] * 4)], 16)
    before = asked.logprobs(rows)
    role = parked("reference", model)
    assert role.nbytes == bytes_of(model) == sum(p.numel() for p in model.parameters()) * 4
    for _ in range(2):
        role.offload()
        role.onload()
        np.testing.assert_array_equal(asked.logprobs(rows)[0], before[0])
    assert model.head.out.weight is model.embed.weight, "tied as it was"


def test_an_engine_gives_its_cache_back_and_keeps_the_weights() -> None:
    model = tiny_model()
    engine = LLM(model, tiny_tokenizer(), EngineConfig(max_num_seqs=4))
    sampling = SamplingParams(max_tokens=4, seed=1)
    before = engine.generate([[5, 6, 7]], sampling)[0].outputs[0].token_ids
    role = engine_role(engine)
    assert role.nbytes == sum(x.nbytes for x in engine.core.sleeper.cache.tensors) > 0
    role.offload()
    assert engine.core.sleeper.asleep == {"kv_cache"}
    assert not engine.core.sleeper.cache.tensors
    torch.testing.assert_close(engine.core.model.embed.weight, model.embed.weight)
    role.onload()
    assert engine.generate([[5, 6, 7]], sampling)[0].outputs[0].token_ids == before
