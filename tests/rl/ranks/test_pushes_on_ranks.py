"""A version that ranks write together has the bits of the gathered policy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from rl.ranks._pushes import FAR, segments, steps
from rondo.engine.config import EngineConfig
from rondo.models.adapters import LoraSpec, attach_lora
from rondo.parallel.ranks.mesh import Mesh
from rondo.rl.config import RlConfig
from rondo.rl.remote.rank_policy import rank_policy
from rondo.server.config import ServerConfig
from server.running import Running, start
from support.launch import fork
from support.served import ADMIN_KEY, write_model
from support.tiny import TINY_GPT_OSS, TINY_MLA, TINY_MOE, tiny_model

HEAVY = ("torch.distributed.fsdp", "rondo.parallel.apply", "rondo.rl.remote.connect")
BF16 = {"precision": "bfloat16"}
ODD = {"vocab_size": 303, "tie_word_embeddings": False}
CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"zero": 3}, {}, {}),
    ({"zero": 3}, BF16, {}),
    ({"zero": 0}, {}, {}),
    ({"tp": 2}, {}, {}),
    ({"tp": 2}, BF16, {}),
    ({"pp": 2}, {}, {}),
    ({"cp": 2}, {}, {}),
    ({"ep": 2}, BF16, TINY_MOE),
    ({"zero": 3}, BF16, ODD),
    ({"tp": 2}, {}, ODD),
    ({"tp": 2}, {}, TINY_MLA),
]


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = write_model(tmp_path_factory.mktemp("ground") / "tiny")
    engine = EngineConfig(max_num_seqs=12, block_size=4, deterministic=True)
    yield from start(model, engine, ServerConfig(port=0, admin_key=ADMIN_KEY))


def test_every_layout_writes_the_gathered_bits(tmp_path: Path) -> None:
    (found, written), (_, others) = fork(segments, 2, tmp_path, CASES, imports=HEAVY)
    assert found == [[]] * 2 * len(CASES)
    for case, mine, theirs in zip(CASES, written, others, strict=True):
        assert 0.3 < mine / (mine + theirs) < 0.7, case


@pytest.mark.parametrize(
    "cases",
    [
        [
            ({}, "full", "folder"),
            ({}, "later", "folder"),
            ({}, "folders", "folder"),
            ({"zero": 3}, "", "shm"),
        ],
        [({}, "hosts", "shm"), ({"zero": 1}, "", "shm"), ({"tp": 2}, "", "shm")],
    ],
    ids=["fsdp", "tp"],
)
def test_an_engine_has_the_bits_of_all_ranks(
    operated: Running, cases: list[tuple[dict[str, Any], str, str]]
) -> None:
    weights, _ = fork(steps, 2, operated.url, cases, imports=HEAVY)
    theirs = dict(operated.engine.core.model.named_parameters())
    assert weights.keys() == theirs.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"engine": FAR.model_copy(update={"transport": "folder"})}, {}),
        ({"adapter": {"kind": "lora", "r": 4}}, {}),
        ({}, TINY_GPT_OSS),
    ],
    ids=["folders", "lora", "interleaved"],
)
def test_other_policies_are_gathered(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    model, config = tiny_model(**changes), RlConfig(**{"engine": FAR} | settings)
    if config.adapter.kind == "lora":
        attach_lora(model, LoraSpec(r=4))
    assert rank_policy(model, config, cast(Mesh, object())) is None
