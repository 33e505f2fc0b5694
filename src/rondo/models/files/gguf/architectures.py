"""Names of architectures and tensors in GGUF files and in Hugging Face checkpoints. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rondo.base.errors import ModelError
from rondo.base.storage.gguf import Gguf


@dataclass(frozen=True)
class Architecture:
    """One `general.architecture`. `modules` are names after `model.layers.N.` -> names after `blk.N.`."""

    model_type: str
    classname: str
    modules: Mapping[str, str]
    swaps_pairs: bool = False
    """Whether the rows of q and k are in the order of interleaved rotary pairs."""
    adds_one: bool = False
    """Whether norms are stored plus one."""
    experts: tuple[str, Mapping[str, str]] | None = None
    """The name of the experts' module, and the names of its matrices for gate, up and down."""
    window_every: int | None = None
    """One of so many layers has full attention, the others a sliding window."""


ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
MLP = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
BEFORE = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
AROUND = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
PLAIN = ATTENTION | MLP | BEFORE
FUSED = {
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
"""Modules outside the layers."""
PROJECTIONS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
MIXTRAL = {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}

LLAMA = Architecture("llama", "LlamaForCausalLM", PLAIN, swaps_pairs=True)
ARCHITECTURES = {
    "llama": LLAMA,
    "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", PLAIN, swaps_pairs=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", PLAIN),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", PLAIN | QK_NORMS),
    "qwen3moe": Architecture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        PLAIN | QK_NORMS | {"mlp.gate": "ffn_gate_inp"},
        experts=("mlp.experts", PROJECTIONS),
    ),
    "gemma2": Architecture(
        "gemma2", "Gemma2ForCausalLM", ATTENTION | MLP | AROUND, adds_one=True, window_every=2
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        ATTENTION | QK_NORMS | MLP | AROUND,
        adds_one=True,
        window_every=6,
    ),
    "phi3": Architecture("phi3", "Phi3ForCausalLM", FUSED | BEFORE),
    "olmo2": Architecture("olmo2", "Olmo2ForCausalLM", ATTENTION | QK_NORMS | MLP | AFTER),
}
"""`general.architecture` -> how it is read."""
MIXTRAL_ARCHITECTURE = Architecture(
    "mixtral",
    "MixtralForCausalLM",
    ATTENTION | BEFORE | {"block_sparse_moe.gate": "ffn_gate_inp"},
    swaps_pairs=True,
    experts=("block_sparse_moe.experts", MIXTRAL),
)
"""A `llama` file with experts."""
OF_FAMILY = {each.model_type: name for name, each in ARCHITECTURES.items()} | {
    "mistral": "llama",
    "mixtral": "llama",
}
"""`model_type` of a config.json -> `general.architecture`."""
FACTORS = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""Tensors that belong to the config."""


def architecture_of(gguf: Gguf) -> Architecture:
    name = gguf.need("general.architecture", str)
    found = ARCHITECTURES.get(name)
    if found is None:
        raise ModelError(
            f"{gguf.path}: architecture {name!r} (general.architecture) is not supported in GGUF files; supported: "
            f"{', '.join(ARCHITECTURES)}. Use the model's safetensors files if Rondo supports its family.",
            param="general.architecture",
        )
    return MIXTRAL_ARCHITECTURE if found is LLAMA and gguf.get(f"{name}.expert_count", int, 0) else found


def family_architecture(hf: Mapping[str, Any]) -> tuple[str, Architecture]:
    """The name and the architecture for a config.json."""
    model_type = str(hf.get("model_type"))
    name = OF_FAMILY.get(model_type)
    if name is None:
        raise ModelError(
            f"A {model_type} model cannot be written as GGUF; supported: {', '.join(sorted(OF_FAMILY))}.",
            param="model_type",
        )
    return name, MIXTRAL_ARCHITECTURE if model_type == "mixtral" else ARCHITECTURES[name]


@dataclass(frozen=True)
class TensorName:
    """A tensor's name in the other format. `expert` is its place in a tensor of all experts of a layer."""

    name: str
    expert: int | None = None


LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


def gguf_name(architecture: Architecture, name: str) -> TensorName | None:
    """The GGUF name of a Hugging Face tensor; None if GGUF has none."""
    inside = LAYER.fullmatch(name)
    if inside is None:
        module, _, leaf = name.rpartition(".")
        return TensorName(f"{WHOLE[module]}.{leaf}") if module in WHOLE else None
    layer, module, leaf = inside.groups()
    if module in architecture.modules:
        return TensorName(f"blk.{layer}.{architecture.modules[module]}.{leaf}")
    if architecture.experts is None:
        return None
    owner, matrices = architecture.experts
    match module.removeprefix(f"{owner}.").split("."):
        case [expert, matrix] if expert.isdigit() and matrix in matrices:
            return TensorName(f"blk.{layer}.{matrices[matrix]}.{leaf}", int(expert))
    return None


def hf_names(architecture: Architecture, name: str, experts: int) -> Iterator[TensorName]:
    """The Hugging Face names of a GGUF tensor: one, or one an expert."""
    whole = {theirs: ours for ours, theirs in WHOLE.items()}
    parts = name.split(".")
    if parts[0] in whole and len(parts) == 2:
        yield TensorName(f"{whole[parts[0]]}.{parts[1]}")
        return
    if parts[0] != "blk" or len(parts) != 4:
        return
    _, layer, module, leaf = parts
    named = {theirs: ours for ours, theirs in architecture.modules.items()}
    if module in named:
        yield TensorName(f"model.layers.{layer}.{named[module]}.{leaf}")
    elif architecture.experts is not None:
        owner, matrices = architecture.experts
        matrix = {theirs: ours for ours, theirs in matrices.items()}.get(module)
        if matrix is not None:
            for expert in range(experts):
                yield TensorName(f"model.layers.{layer}.{owner}.{expert}.{matrix}.{leaf}", expert)
