"""Deterministic mode (`engine.deterministic`): checks of the settings, the model and the machine."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rondo.base.errors import ConfigError
from rondo.engine.config import EngineConfig
from rondo.engine.kv.cache import kv_dtype
from rondo.engine.schedule.intake import max_model_len
from rondo.models import Decoder
from rondo.ops.dispatch import references_only
from rondo.ops.native.build.ahead import lost
from rondo.ops.native.gemm.linear import always_take_bf16

TYPES = (torch.float32, torch.bfloat16)


def check_settings(config: EngineConfig) -> None:
    """Raises an error for settings that no model can run deterministically. Called before ranks are started."""
    if not config.deterministic:
        return
    if config.tensor_parallel > 1:
        raise refusal(
            "tensor_parallel",
            f"is {config.tensor_parallel}: sums over several processes round differently. Set it to 1",
        )


def hold_bits(model: Decoder, config: EngineConfig, owner: object) -> Callable[[], object]:
    """Enforces deterministic mode: raises an error for a model, machine or setting with which a request's bits could
    depend on its batch or differ from the learner's. Until the returned function is called or the owner is deleted, all
    bf16 products use the compiled kernel."""
    check_settings(config)
    if not config.deterministic:
        return lambda: None
    if model.device.type != "cpu":
        raise refusal("device", f"is {model.device}: deterministic mode needs a CPU. Set device to cpu")
    if model.dtype not in TYPES:
        raise refusal("dtype", f"is {model.dtype}: deterministic mode needs float32 or bfloat16")
    if kv_dtype(config, model.dtype) != model.dtype:
        raise refusal(
            "kv_dtype",
            f"is {config.kv_dtype}: the learner does not round keys and values to it. Leave it out",
        )
    longest = max_model_len(config, model.config.max_positions)
    if any(rope.by_length and longest > rope.original_max_positions for rope in model.ropes):
        raise refusal(
            "max_model_len",
            f"is {longest}: beyond the length it was trained for this model rotates by how long a request is so far. "
            f"Set it to at most {min(r.original_max_positions for r in model.ropes if r.by_length)}",
        )
    if references_only():
        raise refusal(
            "deterministic", "is set, and RONDO_OPS=reference has torch multiply. Leave out one of them"
        )
    if why := lost():
        raise refusal("deterministic", f"is set, but {why}")
    return always_take_bf16(owner)


def refusal(name: str, why: str) -> ConfigError:
    tail = "." if name == "deterministic" else ", or leave out deterministic."
    return ConfigError(f"{name} {why.removesuffix('.')}{tail}", param=name)
