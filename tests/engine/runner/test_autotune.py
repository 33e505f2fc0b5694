"""Which products an engine has tuned at its start, and when it does not."""

from typing import Any

import pytest
import torch

from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.runner import autotune as module
from rondo.engine.runner.autotune import products_of
from rondo.models import Decoder, new
from rondo.ops.dispatch import use_reference
from rondo.ops.native.build.build import compiler
from support.families import CONFIGS

pytestmark = pytest.mark.skipif(not compiler(), reason="no C compiler here: nothing is tuned without one")


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(module, "tune", found.append)
    return found


def model_of(name: str) -> Decoder:
    return new(CONFIGS[name]().to_dict(), seed=0)


def start(model: Decoder, **settings: Any) -> None:
    EngineCore(model, EngineConfig(block_size=4, max_model_len=64, max_num_seqs=2, **settings)).close()


def test_a_model_that_runs_operation_by_operation_has_its_products_tuned(tuned: list[Any]) -> None:
    model = model_of("gemma2")
    start(model)
    [products] = tuned
    assert products == products_of(model)
    layer = model.layers[0].mlp
    assert (torch.float32, layer.gate.out_features, layer.gate.in_features) in {each[:3] for each in products}
    assert len(set(products)) == len(products)
    assert {each.threads for each in products} == {torch.get_num_threads()}


def test_nothing_is_tuned_where_nothing_would_use_it_or_it_is_not_wanted(tuned: list[Any]) -> None:
    start(model_of("qwen3"))
    model = model_of("gemma2")
    start(model, autotune=False)
    start(model, deterministic=True)
    with use_reference():
        start(model)
    assert not tuned
