"""The planner fills what the user has not set, always in the same way, and small models keep the settings' defaults."""

import json
from pathlib import Path
from typing import Any

import pytest

from rondo.base.errors import ConfigError
from rondo.cli.main import main
from rondo.plan.cost.cluster import GPUS
from rondo.plan.machine import Device
from rondo.plan.sizes.hf import hf_of
from rondo.plan.sizes.shapes import SHAPES
from rondo.train.config import TrainConfig
from rondo.train.recipes.defaults import PlannedConfig, planned
from support.tiny import tiny_config

GIB = 2**30
CPU = Device("EPYC", "cpu", 24 * GIB, 22 * GIB)
CARD = Device.of_gpu(GPUS["rtx-4090"])
H100 = Device.of_gpu(GPUS["h100"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def of(folder: Path, name: str, device: Device, kind: Any = "sft", **settings: Any) -> PlannedConfig:
    model = folder / name
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(hf_of(SHAPES[name]) if name in SHAPES else tiny_config()))
    return planned(kind, TrainConfig.model_validate(settings), model, device=device)


def chosen(plan: PlannedConfig) -> dict[str, Any]:
    return {choice.setting: choice.value for choice in plan.choices}


@pytest.mark.parametrize("device", [CPU, CARD, H100])
def test_small_models_keep_the_defaults(device: Device, folder: Path):
    plan = of(folder, "tiny", device)
    assert plan.config == TrainConfig()
    assert not plan.choices
    assert plan.memory is not None


def test_a_gpu_computes_in_bf16(folder: Path):
    plan = of(folder, "qwen3-0.6b", H100)
    assert chosen(plan) == {"precision": "bfloat16"}
    assert plan.config.precision == "bfloat16"
    assert plan.step_seconds is not None


def test_lora_where_full_weights_do_not_fit(folder: Path):
    plan = of(folder, "qwen3-4b", CARD)
    assert chosen(plan) == {"adapter.kind": "lora", "dtype": "bfloat16", "tokens_per_microbatch": 2048}
    assert plan.choices[0].reason.startswith("full fine-tuning needs 77.")
    assert plan.config.adapter.kind == "lora"


def test_qlora_where_lora_does_not_fit(folder: Path):
    plan = of(folder, "qwen3-14b", CARD)
    assert plan.config.adapter.quantize_base == "nf4"
    assert plan.config.checkpointing == "selective"
    reasons = {choice.setting: choice.reason for choice in plan.choices}
    assert reasons["adapter.quantize_base"].startswith("LoRA over 16-bit weights needs")


def test_an_error_where_nothing_fits(folder: Path):
    with pytest.raises(ConfigError, match="the smallest requirement is"):
        of(folder, "qwen3-32b", CARD)


def test_pretraining_does_not_become_a_lora(folder: Path):
    with pytest.raises(ConfigError, match=r"the smallest requirement is \d+\.\d GiB \(full weights"):
        of(folder, "qwen3-4b", CARD, "pretrain")


@pytest.mark.parametrize(
    "settings",
    [
        {"adapter": {"kind": "none"}},
        {"adapter": {"kind": "lora", "quantize_base": "none"}, "dtype": "float32"},
        {"adapter": {"kind": "tokenformer"}},
        {"checkpointing": "selective", "tokens_per_microbatch": 4096, "logits": "whole"},
        {"dtype": "float32", "precision": "float32"},
        {"adapter": {"kind": "lora"}, "precision": "float16"},
    ],
)
def test_settings_of_the_user_win(settings: dict[str, Any], folder: Path):
    plan = of(folder, "qwen3-0.6b", CARD, **settings)
    TrainConfig.model_validate(plan.config.model_dump())
    for name, value in settings.items():
        told = plan.config.model_dump()[name]
        assert (told | value == told) if isinstance(value, dict) else told == value


def test_full_weights_that_do_not_fit_are_a_warning_if_the_user_wants_them(folder: Path):
    plan = of(folder, "qwen3-8b", CARD, adapter={"kind": "none"})
    assert not plan.choices
    assert "the job may run out of memory" in plan.warning


def test_a_lora_of_the_user_becomes_a_qlora(folder: Path):
    assert of(folder, "qwen3-14b", CARD, adapter={"kind": "lora"}).config.adapter.quantize_base == "nf4"


def test_preference_training_of_a_lora_has_a_higher_rate(folder: Path):
    assert of(folder, "qwen3-4b", CARD, "preference").config.lr == 1e-5
    assert of(folder, "qwen3-4b", CARD, "preference", lr=3e-6).config.lr == 3e-6
    assert of(folder, "qwen3-0.6b", CARD, "preference").config.of_kind("preference").lr == 1e-6


def test_experts_have_a_lora_over_attention(folder: Path):
    plan = of(folder, "qwen3-30b-a3b", CARD)
    assert plan.config.adapter.targets == r".*\.self_attn\.\w+"


def test_the_job_does_not_depend_on_free_memory(folder: Path):
    """Only settings without influence on the result do."""
    much = of(folder, "qwen3-0.6b", Device("EPYC", "cpu", 64 * GIB, 60 * GIB))
    little = of(folder, "qwen3-0.6b", Device("EPYC", "cpu", 64 * GIB, 14 * GIB))
    neutral = TrainConfig().neutral()
    assert much.config.model_dump(exclude=neutral) == little.config.model_dump(exclude=neutral)
    assert (much.config.checkpointing, little.config.checkpointing) != ("full", "none")
    assert little.config.checkpointing != "none"
    assert any("are free at this start" in choice.reason for choice in little.choices)
    least = of(folder, "qwen3-0.6b", Device("EPYC", "cpu", 64 * GIB, 4 * GIB))
    assert "4.0 GiB are free" in least.warning


def test_several_ranks_have_no_choices(folder: Path):
    (folder / "config.json").write_text(json.dumps(hf_of(SHAPES["qwen3-4b"])))
    assert planned("sft", TrainConfig(), folder, 2, CARD) == PlannedConfig(TrainConfig())


def test_config_shows_the_planner_as_source(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setenv("RONDO_HOME", str(folder))
    (folder / "models/big").mkdir(parents=True)
    (folder / "models/big/config.json").write_text(json.dumps(hf_of(SHAPES["llama-3-70b"])))
    flags = [
        "--train.model=big",
        "--train.device=cpu",
        "--train.adapter.kind=none",
        "--train.checkpointing=full",
    ]
    monkeypatch.setattr(
        "rondo.train.recipes.defaults.device_at_hand",
        lambda name: Device("CPU", "cpu", 4096 * GIB, bf16=True),
    )
    assert main(["config", *flags, "train"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["train.precision"] == ["train.precision", '"bfloat16"', "planner"]
    assert lines["train.checkpointing"][-1] == "--train.checkpointing"
