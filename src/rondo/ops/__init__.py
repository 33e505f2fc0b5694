"""Tensor operations: for each a plain-torch reference and, where one pays, faster versions behind one dispatcher."""

from rondo.ops import flash as _flash  # noqa: F401 registers itself
from rondo.ops.activation import gated
from rondo.ops.attention import AttentionSpec, packed_attention
from rondo.ops.attention_parts import attention_part, attention_part_gradients
from rondo.ops.chunks import Chunks, chunk_attention
from rondo.ops.draw import NO_TOKEN, choose_tokens, draw
from rondo.ops.linear import linear
from rondo.ops.logprobs import token_logprobs
from rondo.ops.low_rank import RANK_MULTIPLE, Pair, Pairs, RowGroups, add_low_rank, add_low_rank_to
from rondo.ops.moe import ExpertWeights, RouterSpec, grouped_experts, route
from rondo.ops.native import draw as _native_draw  # noqa: F401 registers itself
from rondo.ops.native import linear as _native_linear  # noqa: F401 registers itself
from rondo.ops.native import logprobs as _native_logprobs  # noqa: F401 registers itself
from rondo.ops.native import low_rank as _native_low_rank  # noqa: F401 registers itself
from rondo.ops.native import packed as _native_packed  # noqa: F401 registers itself
from rondo.ops.native import paged_decode as _native_paged_decode  # noqa: F401 registers itself
from rondo.ops.native import pointwise as _native_pointwise  # noqa: F401 registers itself
from rondo.ops.native import quantized as _native_quantized  # noqa: F401 registers itself
from rondo.ops.norm import add_rms_norm, rms_norm
from rondo.ops.paged_attention import DecodeStep, paged_decode
from rondo.ops.pages import Pages
from rondo.ops.quantized import Quantized, quantized_linear
from rondo.ops.rope import RopeSpec, rope_tables, rotate
from rondo.ops.sharded import rules as _sharded_rules  # noqa: F401 registers itself
from rondo.ops.triton import attention as _triton_attention  # noqa: F401 registers itself
from rondo.ops.triton import pointwise as _triton_pointwise  # noqa: F401 registers itself
from rondo.ops.triton import vocabulary as _triton_vocabulary  # noqa: F401 registers itself

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
]
