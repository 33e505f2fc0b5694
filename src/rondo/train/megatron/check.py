"""Checks for the Megatron-Core learner. Unsupported settings and parts of a model raise an error with their name."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rondo.base.errors import ConfigError, MissingExtra
from rondo.models.architecture import Dense, Gqa, Layer, ModelConfig
from rondo.parallel.config import MemoryConfig
from rondo.train.config import OptimConfig

if TYPE_CHECKING:
    from rondo.parallel.layout.degrees import Degrees

FIELD = "train.learner"
NATIVE = ("logits", "offload", "offload_to")
"""Memory settings that only the native learner has."""


def check(model: ModelConfig, config: OptimConfig, degrees: Degrees | None = None) -> None:
    """Raises if the job is not supported. Pure: it does not need Megatron-Core."""
    odd = next(_unlike_llama(model), None)
    if odd is not None:
        raise ConfigError(
            f"{FIELD}: megatron trains decoders like Llama and Qwen3; this {model.family} model has {odd}. Use native.",
            param=FIELD,
        )
    if config.optimizer != "adamw":
        raise _refused("optimizer", f"{config.optimizer} needs matrices that are not fused: use adamw")
    if config.precision in ("fp8", "fp8-rowwise"):
        raise _refused("precision", f"{config.precision} needs Transformer Engine and CUDA: set bfloat16")
    if config.precision == "float16":
        raise _refused("precision", "the Megatron-Core learner has no loss scaling: set bfloat16")
    for name in NATIVE:
        if getattr(config, name) != MemoryConfig.model_fields[name].get_default(call_default_factory=True):
            raise _refused(name, f"{getattr(config, name)!r} is the native learner's: leave it as it is")
    if degrees is not None:
        _check_degrees(model, degrees)


def check_installed() -> None:
    if importlib.util.find_spec("megatron") is None:
        raise MissingExtra("megatron-core", "megatron")


def _unlike_llama(model: ModelConfig) -> Iterator[str]:
    first = model.layers[0]
    if any(layer != first for layer in model.layers):
        yield "layers that differ"
    yield from _odd_layer(first)
    ends = {
        "a head that scores": model.scores,
        "a norm that adds to its weight": model.norm_offset != 0,
        "a scaled embedding": model.embed_scale is not None,
        "a soft cap on its logits": model.logit_softcap is not None,
        "quantized weights": model.quantization is not None,
    }
    yield from (what for what, there in ends.items() if there)


def _odd_layer(layer: Layer) -> Iterator[str]:
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(attention, Gqa):
        yield "attention over latents"
        return
    if not isinstance(mlp, Dense):
        yield "experts"
        return
    rope = attention.rope
    odd = {
        "norms after its half layers": layer.norms != "before",
        "a norm over all heads at once": attention.qk_norm == "full",
        "a window of attention": attention.window is not None,
        "a soft cap on attention": attention.softcap is not None,
        "attention sinks": attention.sinks,
        "biases beside those of q, k and v": attention.out_bias or mlp.bias,
        f"the activation {mlp.activation}": mlp.activation != "silu",
        "no rotary embedding": rope is None,
        "interleaved rotary embedding": rope is not None and rope.interleaved,
        f"rotary embedding of the kind {rope.kind if rope else ''}": rope is not None
        and (rope.by_length or rope.attention_factor != 1),
    }
    yield from (what for what, there in odd.items() if there)


def _check_degrees(model: ModelConfig, degrees: Degrees) -> None:
    layout = degrees.config
    if layout.cp > 1:
        raise _refused("layout.cp", "Megatron-Core needs Transformer Engine and CUDA for it: leave it at 1")
    if layout.ep > 1:
        raise _refused("layout.ep", "the Megatron-Core learner has no experts: leave it at 1")
    if layout.pp > 1 and layout.schedule != "1f1b":
        raise _refused("layout.schedule", "the Megatron-Core learner's is 1f1b: leave it out")
    if len(model.layers) % layout.pp:
        raise _refused("layout.pp", f"{layout.pp} does not divide {len(model.layers)} layers")
    if degrees.dp > 1 and layout.zero > 1:
        raise _refused(
            "layout.zero",
            "Megatron-Core's buffers shard the optimizer's state, but no weights: set it to 1 or 0",
        )
    if layout.zero and layout.dp_replicate > 1:
        raise _refused(
            "layout.dp_replicate", "the Megatron-Core learner shards over all dp ranks: leave it at 1"
        )
    attention = model.layers[0].attention
    if attention.num_kv_heads % layout.tp:
        raise _refused("layout.tp", f"{layout.tp} does not divide {attention.num_kv_heads} key heads")


def _refused(name: str, reason: str) -> ConfigError:
    return ConfigError(f"train.{name}: {reason}.", param=f"train.{name}")
