"""Models with experts: DeepSeek-V3, Qwen3, Mixtral and Kimi K2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rondo.plan.cost.layout import Policy
from rondo.plan.sizes.shapes import SHAPES
from support.published_runs.row import Row, row


def sparse() -> Iterator[Row]:
    deepseek, lean = SHAPES["deepseek-v3"], Policy(precision="fp8", optimizer_bytes=8)
    yield row(
        "deepseek-v3 fp8, H800",
        "DeepSeek-V3 technical report",
        deepseek,
        "h800",
        (15360, 4096),
        replace(lean, checkpointing="selective", expert_overlap=True),
        gpus=2048,
        pp=16,
        ep=64,
        zero_bubble=True,
        speed=14.8e12 / (2.664e6 * 3600),
        note="microbatch and selective recomputing assumed",
    )
    yield row(
        "deepseek-v3 fp8, H100",
        "Megatron-Bridge 25.09",
        deepseek,
        "h100",
        (8192, 4096),
        replace(lean, checkpointing="selective", expert_overlap=True),
        gpus=1024,
        tp=2,
        pp=8,
        ep=64,
        virtual=4,
        speed=1297,
    )
    yield row(
        "deepseek-v3 mxfp8, GB300",
        "Megatron-Bridge 26.08",
        deepseek,
        "gb300",
        (4096, 4096),
        replace(lean, checkpointing="selective", captured=True),
        gpus=256,
        pp=2,
        ep=32,
        virtual=8,
        speed=6288,
    )
    large, source = SHAPES["qwen3-235b-a22b"], "Megatron MoE model zoo"
    for overlap, teraflops in ((False, 245.0), (True, 276.0)):
        yield row(
            f"qwen3 235B-A22B bf16{', experts overlapped' if overlap else ''}",
            source,
            large,
            "h100",
            (2048, 4096),
            Policy(checkpointing="selective", expert_overlap=overlap),
            gpus=256,
            tp=2,
            pp=8,
            ep=32,
            virtual=4,
            teraflops=teraflops,
        )
    yield row(
        "qwen3 235B-A22B bf16, FSDP",
        source,
        large,
        "h100",
        (2048, 4096),
        Policy(zero=3, microbatch=4, checkpointing="full", reduce_bytes=2),
        gpus=256,
        tp=2,
        ep=8,
        teraflops=276.0,
    )
    yield row(
        "qwen3 30B-A3B fp8",
        "Megatron-Bridge 26.06",
        SHAPES["qwen3-30b-a3b"],
        "h100",
        (1024, 4096),
        Policy(precision="fp8"),
        gpus=16,
        ep=16,
        speed=8826,
    )
    for name, tp, pp, gpus in (("mixtral-8x7b", 1, 4, 64), ("mixtral-8x22b", 4, 4, 256)):
        yield row(
            f"{name}, recommended",
            "Megatron, parallelism guide",
            SHAPES[name],
            "h100",
            (256, 4096),
            Policy(),
            gpus=gpus,
            tp=tp,
            pp=pp,
            ep=8,
            virtual=SHAPES[name].layers // pp,
            note="batch, length and pieces assumed; no speed is published",
        )
    yield row(
        "kimi-k2, 256 GPUs a copy",
        "Kimi K2 report",
        SHAPES["kimi-k2"],
        "h800",
        (4096, 4096),
        Policy(checkpointing="selective", offloaded=0.9),
        gpus=2048,
        pp=16,
        ep=16,
        virtual=1,
        note="all but PP and EP assumed; about 30 GB of states are published",
    )
