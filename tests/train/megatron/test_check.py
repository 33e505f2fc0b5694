"""What the Megatron-Core learner does not take, it names. Megatron-Core itself is not needed."""

import importlib.util
from typing import Any

import pytest

from rondo import models
from rondo.base.errors import ConfigError, MissingExtra
from rondo.models.adapters import LoraSpec, attach_lora
from rondo.parallel.config import LayoutConfig
from rondo.parallel.layout.degrees import degrees
from rondo.train.config import Kind, OptimConfig, TrainConfig
from rondo.train.learner import factory
from rondo.train.megatron.check import check
from rondo.train.megatron.learner import MegatronLearner
from support.tiny import (
    TINY_BIASES,
    TINY_GEMMA,
    TINY_GPT_OSS,
    TINY_MLA,
    TINY_MOE,
    TINY_OLMO,
    tiny_config,
    tiny_model,
)

ONE = degrees(LayoutConfig(), 1, models.parse(tiny_config()))
ODD: dict[str, tuple[dict[str, Any], str]] = {
    "experts": (TINY_MOE, "experts"),
    "latents": (TINY_MLA, "layers that differ"),
    "olmo": (TINY_OLMO, "norms after its half layers"),
    "gemma": (TINY_GEMMA, "layers that differ"),
    "gpt-oss": (TINY_GPT_OSS, "layers that differ"),
    "biases": (TINY_BIASES, "biases beside those of q, k and v"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rotary embedding of the kind yarn"),
    "window": (
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 8},
        "a window of attention",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_a_model_unlike_llama_is_refused_by_its_part(name: str) -> None:
    changes, what = ODD[name]
    with pytest.raises(ConfigError, match=f"this .* model has {what}") as error:
        check(models.parse(tiny_config(**changes)), OptimConfig())
    assert error.value.param == "train.learner"


@pytest.mark.parametrize(
    "told",
    [
        {"optimizer": "muon"},
        {"logits": "chunked"},
        {"offload": "optimizer"},
        {"precision": "float16"},
        {"precision": "fp8"},
    ],
    ids=lambda told: "-".join(*told.items()),
)
def test_a_setting_that_it_does_not_have_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        check(models.parse(tiny_config()), OptimConfig(**told))
    assert error.value.param == f"train.{next(iter(told))}"


@pytest.mark.parametrize(
    ("layout", "ranks", "field"),
    [
        ({"pp": 2, "schedule": "gpipe"}, 2, "schedule"),
        ({"cp": 2}, 2, "cp"),
        ({"dp": 2, "zero": 2}, 2, "zero"),
        ({"dp": 2, "zero": 3}, 2, "zero"),
        ({"dp": 4, "zero": 1, "dp_replicate": 2}, 4, "dp_replicate"),
        ({"tp": 4}, 4, "tp"),
    ],
)
def test_a_layout_that_it_does_not_have_is_refused(layout: dict[str, Any], ranks: int, field: str) -> None:
    model = models.parse(tiny_config())
    with pytest.raises(ConfigError) as error:
        check(model, OptimConfig(), degrees(LayoutConfig(**layout), ranks, model))
    assert error.value.param == f"train.layout.{field}"


def test_stages_have_equally_many_layers() -> None:
    model = models.parse(tiny_config(num_hidden_layers=3))
    with pytest.raises(ConfigError, match="2 does not divide 3 layers") as error:
        check(model, OptimConfig(), degrees(LayoutConfig(pp=2), 2, model))
    assert error.value.param == "train.layout.pp"


def test_memory_settings_of_megatron_core_are_accepted() -> None:
    model = models.parse(tiny_config())
    layout = degrees(LayoutConfig(dp=2, pp=2, zero=1), 4, model)
    for checkpointing in ("selective", "full"):
        check(model, OptimConfig(checkpointing=checkpointing, precision="bfloat16"), layout)


def test_an_adapter_is_refused() -> None:
    model = tiny_model()
    attach_lora(model, LoraSpec(4, 8.0), seed=0)
    with pytest.raises(ConfigError, match="has an adapter"):
        MegatronLearner(model, OptimConfig())


@pytest.mark.parametrize(
    ("kind", "changes", "what"),
    [("sft", {"adapter": {"kind": "lora"}}, "an adapter"), ("reward", {}, "a reward model")],
)
def test_a_job_that_it_does_not_do_is_refused_before_any_work(
    kind: Kind, changes: dict[str, Any], what: str
) -> None:
    model = models.parse(tiny_config())
    config = TrainConfig(learner="megatron", **changes)
    with pytest.raises(ConfigError, match=f"does not train {what}") as error:
        factory.check(config.learner, kind, config, config.adapter, model, ONE)
    assert error.value.param == "train.learner"
    factory.check("native", kind, config, config.adapter, model, ONE)


@pytest.mark.skipif(
    importlib.util.find_spec("megatron") is not None, reason="megatron-core is installed here"
)
def test_without_megatron_core_the_extra_is_named() -> None:
    with pytest.raises(MissingExtra, match=r"rondo-lab\[megatron\]"):
        MegatronLearner(tiny_model(), OptimConfig())
    config = TrainConfig()
    with pytest.raises(MissingExtra):
        factory.check("megatron", "pretrain", config, config.adapter, models.parse(tiny_config()), ONE)
