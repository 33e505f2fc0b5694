"""Tensor operations: a plain PyTorch reference for each, faster versions next to it, and one dispatcher.

Inputs and outputs are tensors. A fast version registers itself with its operation and declares which arguments it
accepts; the dispatcher uses the first version that accepts them and otherwise the reference, so a missing compiler or
GPU costs speed and nothing else. References are the specification, and tests compare every version with them.

    dispatch.py   `Operation`: reference, fast versions, choice
    attention/    packed, paged and chunked attention, partial attention with log-sum-exp
    gemm/         linear layers, quantized and FP8 products, LoRA products, mixture of experts
    vocabulary/   log-probabilities and sampling over the vocabulary
    pointwise/    RMS norm, gated activations, rotary embedding
    native/       versions in C for CPUs (AVX2, AVX-512, AMX), compiled on first use
    triton/       versions in Triton for CUDA
    sharded/      versions for DTensors: each rank computes on its own shard
    measure/      limits of this machine and the share of them that each operation reaches

Read `dispatch.py`, then `attention/packed.py`.
"""

from rondo.ops.attention import flash as _flash  # noqa: F401 registers itself
from rondo.ops.attention.chunks import Chunks, chunk_attention
from rondo.ops.attention.packed import AttentionSpec, packed_attention
from rondo.ops.attention.paged import DecodeStep, paged_decode
from rondo.ops.attention.pages import Pages
from rondo.ops.attention.parts import attention_part, attention_part_gradients
from rondo.ops.gemm.linear import linear
from rondo.ops.gemm.low_rank import RANK_MULTIPLE, Pair, Pairs, RowGroups, add_low_rank, add_low_rank_to
from rondo.ops.gemm.moe import ExpertWeights, RouterSpec, grouped_experts, route
from rondo.ops.gemm.quantized import Quantized, quantized_linear
from rondo.ops.native.attention import packed as _native_packed  # noqa: F401 registers itself
from rondo.ops.native.attention import paged_decode as _native_paged_decode  # noqa: F401 registers itself
from rondo.ops.native.gemm import linear as _native_linear  # noqa: F401 registers itself
from rondo.ops.native.gemm import low_rank as _native_low_rank  # noqa: F401 registers itself
from rondo.ops.native.pointwise import draw as _native_draw  # noqa: F401 registers itself
from rondo.ops.native.pointwise import logprobs as _native_logprobs  # noqa: F401 registers itself
from rondo.ops.native.pointwise import pointwise as _native_pointwise  # noqa: F401 registers itself
from rondo.ops.native.quantized import quantized as _native_quantized  # noqa: F401 registers itself
from rondo.ops.pointwise.activation import gated
from rondo.ops.pointwise.norm import add_rms_norm, rms_norm
from rondo.ops.pointwise.rope import RopeSpec, rope_tables, rotate
from rondo.ops.sharded import rules as _sharded_rules  # noqa: F401 registers itself
from rondo.ops.triton import attention as _triton_attention  # noqa: F401 registers itself
from rondo.ops.triton import pointwise as _triton_pointwise  # noqa: F401 registers itself
from rondo.ops.triton import vocabulary as _triton_vocabulary  # noqa: F401 registers itself
from rondo.ops.vocabulary.draw import NO_TOKEN, choose_tokens, draw
from rondo.ops.vocabulary.logprobs import token_logprobs, top1_hits

__all__ = [
    "NO_TOKEN",
    "RANK_MULTIPLE",
    "AttentionSpec",
    "Chunks",
    "DecodeStep",
    "ExpertWeights",
    "Pages",
    "Pair",
    "Pairs",
    "Quantized",
    "RopeSpec",
    "RouterSpec",
    "RowGroups",
    "add_low_rank",
    "add_low_rank_to",
    "add_rms_norm",
    "attention_part",
    "attention_part_gradients",
    "choose_tokens",
    "chunk_attention",
    "draw",
    "gated",
    "grouped_experts",
    "linear",
    "packed_attention",
    "paged_decode",
    "quantized_linear",
    "rms_norm",
    "rope_tables",
    "rotate",
    "route",
    "token_logprobs",
    "top1_hits",
]
