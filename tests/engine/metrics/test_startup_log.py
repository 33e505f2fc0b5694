"""What computes is said at the start."""

from pathlib import Path

import pytest
import torch

from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.metrics import startup_log as module
from rondo.engine.metrics.startup_log import announce
from rondo.ops import linear
from rondo.ops.dispatch import use_reference
from rondo.ops.native.build import ahead, build
from rondo.ops.native.build.build import library
from rondo.ops.native.gemm.linear import linear_native
from support.tiny import tiny_model


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(
        module.log, "info", lambda text, extra=None: lines.append((text, (extra or {})["step"]))
    )
    monkeypatch.setattr(module.log, "warning", lambda text: lines.append(text))
    return lines


LEVELS = {"amx": "AVX-512", "avx512": "AVX-512", "avx2": "AVX2", "plain": "plain C"}
"""Which floats each multiplies by."""
WAYS = {0: None, 1: "AVX-512 BF16", 2: "AMX"}
"""Of bf16; as `pairs.h` numbers them."""


def what_runs(dtype: torch.dtype) -> str:
    """By the version that takes such tensors, and by the library that it calls."""
    if linear.version(torch.ones(2, 32, dtype=dtype), torch.ones(8, 32, dtype=dtype)) is not linear_native:
        return "plain torch"
    way = WAYS[library("layers").product_way(1)] if dtype == torch.bfloat16 else None
    _, level, _ = Path(library("linear")._name).stem.split("-")
    return way or LEVELS[level]


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16"), (torch.float16, "fp16")]
)
def test_the_type_the_instructions_and_the_threads(said, dtype, name):
    llm = LLM(tiny_model().to(dtype), config=EngineConfig(max_num_seqs=2, block_size=4))
    threads = torch.get_num_threads()
    step = "operation by operation" if llm.core.runner.compiled is None else "one compiled call"
    line, *lost = said
    assert line == (f"{name} {what_runs(dtype)}, {threads} thread{'s' * (threads > 1)}", step)
    assert bool(lost) == (not build.compiler())
    llm.close()


def test_bf16_is_torchs_where_the_cpu_has_instructions_that_are_not_compiled(said, monkeypatch):
    monkeypatch.setattr(module, "takes_bf16", lambda: False)
    announce(tiny_model().to(torch.bfloat16), one_call=False)
    assert said[0][0].startswith("bf16 plain torch, ")


def test_the_references_are_named(said):
    with use_reference():
        announce(tiny_model(), one_call=True)
    assert "fp32 plain torch" in said[0][0]
    assert said[0][1] == "operation by operation"


def test_what_is_lost_without_a_compiler(said, monkeypatch):
    monkeypatch.setattr(ahead, "compiler", list)
    monkeypatch.setattr(ahead, "library", lambda name: None)
    announce(tiny_model(), one_call=False)
    (line, step), lost = said
    assert line.startswith("fp32 plain torch, ")
    assert step == "operation by operation"
    assert lost.endswith("Install gcc.")


def test_a_kernel_that_failed_to_compile_is_named(monkeypatch):
    monkeypatch.setattr(ahead, "library", lambda name: None if name == "draw" else name)
    assert ahead.lost() == "kernels that could not be compiled run as plain torch: draw"


@pytest.mark.parametrize(("why", "runs"), [(None, "Triton 9"), ("Triton is not here", "plain torch")])
def test_a_gpu_and_what_runs_there(said, monkeypatch, why, runs):
    monkeypatch.setattr(module, "missing", lambda: why)
    monkeypatch.setattr(module, "on_device", lambda device: why is None)
    monkeypatch.setattr(module, "version", lambda: "Triton 9")
    model = tiny_model()
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    announce(model, one_call=False, graphs=why is None)
    line, *lost = said
    assert line == (
        f"fp32 cuda, {runs}",
        "decode from CUDA graphs" if why is None else "operation by operation",
    )
    assert len(lost) == (why is not None)
