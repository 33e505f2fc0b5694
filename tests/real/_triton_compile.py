"""Compiles every kernel for cards that are not here, as their own compiler would: run by Triton's peer."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rondo.ops.triton.kernels import attention, pages, pointwise, vocabulary

FLOATS = {"eps", "offset", "limit", "alpha", "scale", "softcap"}
GIVEN = {"x", "added", "weight", "total", "out", "gate", "up", "cos", "sin", "q", "k", "v", "logits"}
KEPT = {"key_data", "value_data"}
WIDE = {"tables", "lengths", "slots", "starts", "counts", "pasts"}
WIDE |= {"block_owners", "block_firsts", "tokens", "places"}
SINGLE = {"tops", "masses", "parts", "sinks", "key_scales", "value_scales"}
SINGLE |= {"scales", "temperatures", "draws", "bests"}


def type_of(name: str, given: str, kept: str) -> str:
    pointers = ((GIVEN, given), (KEPT, kept), (WIDE, "i64"), (SINGLE, "fp32"), ({"masks"}, "i32"))
    for names, kind in pointers:
        if name in names:
            return f"*{kind}"
    return "fp32" if name in FLOATS else "i32"


def compile_one(kernel: Any, capability: int, given: str, kept: str, **constants: Any) -> int:
    """The shared memory that it takes, in bytes."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else type_of(name, given, kept) for name in names}
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")
    }
    chosen = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, chosen, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    return int(made.metadata.shared)


KINDS = (("bf16", "plain", "bf16"), ("fp16", "int8", "i8"), ("bf16", "fp8", "u8"), ("fp32", "plain", "fp32"))


def every_kernel(capability: int) -> None:
    limit = {80: 163, 90: 227}[capability] << 10
    for given, kept, octets in KINDS:
        sizes = {"size": 16, "group": 4, "dim": 128, "value_dim": 128}
        tile = {"SLICE": 256, "ROWS": 16 if given == "fp32" else 64, "KEYS": 32 if given == "fp32" else 64}
        tile |= {"DIM": 128, "VALUE_DIM": 128, "KEPT": kept, "WINDOW": True, "SOFTCAP": True}
        shared = [
            compile_one(attention.decode_slices, capability, given, octets, **sizes, **tile, blocks=1),
            compile_one(attention.attend_blocks, capability, given, octets, **sizes, **tile, SINKS=True),
        ]
        assert max(shared) < limit, shared
        rows = {name: tile[name] for name in ("DIM", "VALUE_DIM", "KEPT")}
        compile_one(pages.write_tokens, capability, given, octets, dim=128, value_dim=128, HEADS=8, **rows)
    tile = {"value_dim": 128, "SLICE": 256, "KEYS": 64, "VALUE_DIM": 128, "WINDOW": True, "SINKS": True}
    compile_one(attention.join_slices, capability, "bf16", "", **tile)
    compile_one(pointwise.norm_rows, capability, "bf16", "", WIDTH=1024, ADDS=True)
    for kind in ("silu", "gelu_tanh", "gelu", "clamped_swiglu"):
        compile_one(pointwise.gate_pieces, capability, "bf16", "", KIND=kind, PIECE=1024)
    turned = {"HEADS": 16, "HALF": 64, "REST": 64, "INTERLEAVED": True}
    compile_one(pointwise.rotate_tokens, capability, "bf16", "", **turned)
    compile_one(vocabulary.sum_slices, capability, "bf16", "", SLICE=4096, SCALED=True)
    compile_one(vocabulary.score_tokens, capability, "bf16", "", SLICES=64, SCALED=True)
    compile_one(vocabulary.look_through, capability, "fp32", "", SLICE=4096, MASKED=True)
    compile_one(vocabulary.choose_rows, capability, "fp32", "", SLICE=4096, SLICES=64, MASKED=True)


for capability in map(int, sys.argv[1:]):
    every_kernel(capability)
    print("compiled for", capability)
