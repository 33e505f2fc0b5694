"""Each kind of replica that the planner recommends is one that `rondo serve` starts, with the flags it prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from rondo import models
from rondo.cli.main import main
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.flags import FLAGS
from rondo.cli.options.short import read_short
from rondo.plan.cost.cluster import GPUS, Cluster
from rondo.plan.report import flags, quantize_flags
from rondo.plan.serving import Load, Replica, Serving, replicas
from rondo.plan.sizes.hf import shape_of
from server.running import start
from support.home import own_home
from support.tiny import TINY_MLA, TINY_MOE, tiny_config, tiny_model, tiny_tokenizer

WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "moe_intermediate_size": 32}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "dense": WIDE,
    "experts": TINY_MOE | WIDE,
    "latent": TINY_MLA | WIDE | LATENT,
}


def kinds() -> list[Any]:
    """All that differ in what a rank does; two ranks stand for more."""
    found = []
    for family, changes in FAMILIES.items():
        shape = replace(shape_of(tiny_config(**changes), family), context=256)
        for replica in replicas(shape, Cluster(GPUS["h100"], 2), Load(1, 16, 8), None, None, None):
            name = f"{family}-{replica.weights}-{replica.cache}-tp{replica.tp}"
            found.append(pytest.param(family, replica, id=name))
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Serving], Path]:
    """The folder of a family's small model with the weights of a row, by the command that the planner prints."""
    place = tmp_path_factory.mktemp("models")
    patch = pytest.MonkeyPatch()

    def make(family: str, serving: Serving) -> Path:
        plain = place / family
        if not plain.exists():
            models.save(tiny_model(**FAMILIES[family]), plain)
            tiny_tokenizer().save(plain)
        quantized = quantize_flags(serving)
        if not quantized:
            return plain
        out = place / f"{family}-{serving.replica.weights}"
        if not out.exists():
            with patch.context() as home:
                home.setenv("RONDO_HOME", str(own_home(place / "home")))
                assert main(["model", "quantize", str(plain), *quantized, "--out", str(out)]) == 0
        return out

    return make


def test_all_kinds_are_here() -> None:
    rows: list[Replica] = [param.values[1] for param in kinds()]
    assert {(row.weights, row.cache, row.tp) for row in rows} == {
        (weights, cache, tp)
        for weights in ("bf16", "fp8", "int8", "int4")
        for cache in ("bf16", "fp8")
        for tp in (1, 2)
        if weights == "bf16" or tp == 1
    }


@pytest.mark.parametrize(("family", "replica"), kinds())
def test_it_starts_and_answers(family: str, replica: Replica, made: Callable[[str, Serving], Path]) -> None:
    serving = Serving(replica, 1, 1)
    command = read_short(VerbParser("rondo serve", ""), tuple(FLAGS), ["MODEL", *flags(serving)])
    assert command is not None
    tree = command.config.tree
    engine = tree.engine.model_copy(update={"device": "cpu", "num_blocks": 64})
    for running in start(made(family, serving), engine, tree.server):
        said = httpx.post(
            f"{running.url}/v1/completions",
            json={"model": made(family, serving).name, "prompt": "the user", "max_tokens": 2},
            timeout=120,
        )
        assert said.status_code == 200, said.text
