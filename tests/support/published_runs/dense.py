"""Models without experts: Megatron-LM, Llama 3, Megatron-Bridge, and the paper on activation recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rondo.plan.cost.layout import Policy
from rondo.plan.sizes.shapes import SHAPES, gpt
from support.published_runs.row import Row, row


def megatron() -> Iterator[Row]:
    """Pieces and microbatch are not published: a layer a piece, one sequence."""
    table = (
        ("1.7B", 16, 2048, 24, 1, 1, 192, 408.8),
        ("7.1B", 32, 4096, 30, 2, 1, 192, 465.9),
        ("16B", 48, 6144, 32, 4, 1, 192, 489.1),
        ("32B", 56, 7168, 48, 8, 1, 192, 459.6),
        ("70B", 64, 8192, 84, 8, 2, 384, 419.7),
        ("119B", 80, 10240, 92, 8, 4, 768, 420.5),
        ("177B", 96, 12288, 96, 8, 6, 1152, 432.8),
        ("314B", 128, 16384, 96, 8, 8, 1536, 474.4),
        ("462B", 144, 18432, 112, 8, 16, 3072, 459.9),
    )
    for name, heads, hidden, layers, tp, pp, sequences, teraflops in table:
        yield row(
            f"megatron {name}",
            "Megatron-LM, model table",
            gpt(f"gpt-{name}", layers, hidden, heads, 131072, tied=False),
            "h100",
            (sequences, 4096),
            Policy(dropout=True, microbatch=1 if pp > 1 else 4),
            gpus=48 * tp * pp,
            tp=tp,
            pp=pp,
            virtual=layers // pp if pp > 1 else 1,
            teraflops=teraflops,
            causal=False,
            note="pieces of one layer and the microbatch assumed",
        )


def llama3() -> Iterator[Row]:
    shape, source = SHAPES["llama-3-405b"], "The Llama 3 herd of models, table 4"
    for gpus, cp, dp, each, length, teraflops in (
        (8192, 1, 64, 32, 8192, 430.0),
        (16384, 1, 128, 16, 8192, 400.0),
        (16384, 16, 8, 16, 131072, 380.0),
    ):
        yield row(
            f"llama-3 405B, {gpus} GPUs, {length // 1024}k",
            source,
            shape,
            "h100",
            (dp * each, length),
            Policy(zero=2),
            gpus=gpus,
            tp=8,
            pp=16,
            cp=cp,
            virtual=8,
            teraflops=teraflops,
            note="pieces of one layer assumed",
        )
    yield row(
        "llama-3 405B, activation function kept",
        "the same, without a fused SwiGLU",
        shape,
        "h100",
        (2048, 8192),
        Policy(zero=2, swiglu="kept"),
        gpus=16384,
        tp=8,
        pp=16,
        virtual=8,
        fits=False,
    )


def bridge() -> Iterator[Row]:
    low = Policy(precision="fp8")
    yield row(
        "llama-3 8B fp8, FSDP",
        "Megatron-Bridge 25.11",
        SHAPES["llama-3-8b"],
        "h100",
        (128, 8192),
        replace(low, zero=3, checkpointing="full", layers_full=5 / 32),
        gpus=8,
        speed=14451,
    )
    yield row(
        "llama-3 70B fp8",
        "Megatron-Bridge 25.11",
        SHAPES["llama-3-70b"],
        "h100",
        (128, 8192),
        low,
        gpus=64,
        tp=4,
        pp=8,
        virtual=5,
        speed=1602,
    )
    for sequences, speed, release in ((512, 292.0, "25.11"), (1536, 326.0, "26.06")):
        yield row(
            f"llama-3 405B fp8, {sequences} sequences",
            f"Megatron-Bridge {release}",
            SHAPES["llama-3-405b"],
            "h100",
            (sequences, 8192),
            low,
            gpus=1024,
            tp=8,
            pp=8,
            cp=2,
            virtual=8,
            speed=speed,
        )
    yield row(
        "llama-3 70B fp8, FSDP, GB200",
        "Megatron-Bridge 25.11",
        SHAPES["llama-3-70b"],
        "gb200",
        (256, 8192),
        replace(low, zero=3, microbatch=2, offloaded=0.5, captured=True),
        gpus=64,
        speed=4312,
        note="activations of 40 layers wait in host memory",
    )
    for precision, speed in (("fp8", 1048.0), ("fp4", 1413.0)):
        yield row(
            f"llama-3 405B {precision}, GB300",
            "Megatron-Bridge 26.06",
            SHAPES["llama-3-405b"],
            "gb300",
            (1536, 8192),
            replace(low, precision=precision, captured=True),
            gpus=256,
            tp=4,
            pp=8,
            virtual=4,
            speed=speed,
        )


def recomputing() -> Iterator[Row]:
    for full, share in ((False, 0.542), (True, 0.421)):
        yield row(
            f"mt-530b, {'full' if full else 'selective'} recomputing",
            "Reducing activation recomputation, 2205.05198",
            SHAPES["mt-530b"],
            "a100",
            (2240, 2048),
            Policy(
                checkpointing="full" if full else "none",
                dropout=True,
                sequence_parallel=not full,
                overlap=False,
            ),
            gpus=2240,
            tp=8,
            pp=35,
            virtual=3,
            teraflops=share * 312,
            causal=False,
            note="layout, batch and pieces assumed",
        )
