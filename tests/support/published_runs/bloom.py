"""The trials before BLOOM, on A100s without flash attention: how memory grows with the microbatch and each degree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rondo.plan.cost.cluster import GPUS
from rondo.plan.cost.layout import Policy
from rondo.plan.sizes.shapes import gpt
from support.published_runs.row import Row, row

_HALF = Policy(
    checkpointing="full",
    precision="fp16",
    loss="plain",
    flash=False,
    dropout=True,
    sequence_parallel=False,
    overlap=False,
    gradient_bytes=2,
    gradient_shard_bytes=4,
)
_FULL_GRADIENTS = replace(_HALF, precision="bf16", gradient_bytes=6)
"""A copy in fp32 that adds up, undivided, beside the one in bf16."""
_GPU = replace(GPUS["a100"], network=6.25e9)
"""Eight share the 400 Gb/s of a node of Jean Zay."""
_WAITING = "speed: kernels were started one by one, each waiting for the one before (CUDA_LAUNCH_BLOCKING)"

_SLOW_STARTS = frozenset({(4, 8, 12), (8, 8, 6), (24, 8, 2), (8, 1, 48)})


def _misprints() -> Iterator[Row]:
    """Rows of the same table that contradict others of it."""
    for hidden, layers, dp, tp, pp, each, gib, zero, why in (
        (13824, 84, 8, 8, 6, 2, 65.0, 1, "the source has 56 GB for twice the microbatch"),
        (14336, 72, 8, 4, 12, 2, 38.0, 1, "the source has the same run at 44 GB"),
        (14336, 72, 4, 8, 12, 2, 72.0, 0, "measured on another branch, the source says, and not repeated"),
    ):
        yield row(
            f"bloom {hidden}x{layers}, dp{dp} tp{tp} pp{pp}, mbs {each}, zero {zero}",
            "bigscience, chronicles-prequel",
            gpt("bloom", layers, hidden, 64, 250880),
            _GPU,
            (2048, 2048),
            replace(_HALF, microbatch=each, zero=zero),  # type: ignore[arg-type]
            gpus=dp * tp * pp,
            tp=tp,
            pp=pp,
            memory=gib,
            unmet=why,
        )


def bloom() -> Iterator[Row]:
    """Trials before BLOOM: hidden, layers, heads, dp, tp, pp, microbatch, sequences, GiB, seconds a step."""
    half = (
        (14336, 72, 64, 4, 8, 12, 1, 2048, 29, 143.31),
        (14336, 72, 64, 4, 8, 12, 2, 2048, 37, 134.02),
        (14336, 72, 64, 4, 8, 12, 4, 2048, 49, 123.69),
        (14336, 72, 64, 4, 8, 12, 8, 2048, 69, 129.26),
        (14336, 72, 64, 8, 8, 6, 1, 2048, 38, 139.82),
        (14336, 72, 64, 8, 8, 6, 2, 2048, 44, 131.02),
        (14336, 72, 64, 8, 8, 6, 4, 2048, 56, 121.48),
        (13824, 84, 64, 4, 8, 12, 2, 2048, 39, 143.89),
        (13824, 84, 64, 4, 8, 12, 4, 2048, 52, 133.12),
        (13824, 84, 64, 8, 8, 6, 4, 2048, 56, 130.31),
        (13824, 80, 64, 4, 8, 10, 1, 2048, 33, 160.29),
        (13824, 80, 64, 4, 8, 10, 2, 2048, 39, 151.07),
        (13824, 80, 64, 4, 8, 10, 4, 2048, 53, 147.43),
        (13824, 80, 64, 4, 8, 10, 8, 2048, 73, 152.51),
        (14336, 72, 16, 8, 8, 6, 4, 2048, 54, 121.03),
        (14336, 72, 32, 8, 8, 6, 4, 2048, 55, 124.01),
        (14336, 72, 128, 8, 8, 6, 4, 2048, 55, 124.89),
        (14336, 72, 256, 8, 8, 6, 4, 2048, 54, 132.85),
        (13824, 78, 96, 8, 8, 6, 4, 2048, 59, 118.24),
        (14336, 72, 64, 8, 8, 6, 6, 2016, 66, 123.57),
        (14336, 72, 64, 6, 8, 8, 4, 2016, 52, 113.16),
        (14336, 72, 64, 12, 8, 4, 2, 2016, 53, 125.52),
        (14336, 72, 64, 12, 8, 4, 4, 2016, 59, 114.81),
        (14336, 72, 64, 24, 8, 2, 1, 2016, 65, 145.45),
        (14336, 72, 64, 24, 8, 2, 2, 2016, 76, 136.13),
        (14336, 72, 64, 8, 4, 12, 2, 2048, 44, 110.48),
        (14336, 72, 64, 8, 4, 12, 4, 2048, 60, 111.89),
        (14336, 72, 64, 16, 4, 6, 2, 2048, 57, 111.71),
        (14336, 72, 64, 16, 4, 6, 4, 2048, 75, 117.11),
        (14336, 72, 64, 16, 2, 12, 2, 2048, 63, 112.50),
        (14336, 72, 64, 8, 2, 24, 1, 2048, 44, 119.53),
        (14336, 72, 64, 8, 2, 24, 2, 2048, 53, 122.75),
        (12288, 96, 64, 8, 1, 48, 1, 2048, 58, 142.17),
        (12288, 106, 96, 8, 4, 12, 2, 2048, 44, 112.69),
    )
    full = (
        (12288, 106, 64, 8, 4, 12, 2, 2048, 67, 116.54),
        (12288, 106, 96, 8, 4, 12, 4, 2048, 79, 120.34),
        (12288, 100, 64, 8, 8, 6, 2, 2048, 61, 139.72),
        (12288, 100, 64, 8, 8, 6, 4, 2048, 72, 120.96),
        (13312, 82, 64, 4, 8, 12, 4, 2048, 52, 111.79),
        (13312, 82, 64, 8, 4, 12, 2, 2048, 63, 104.45),
        (13312, 82, 64, 8, 4, 12, 4, 2048, 74, 104.82),
        (13312, 94, 128, 8, 4, 12, 2, 2048, 67, 124.10),
        (14336, 70, 64, 4, 8, 12, 2, 2048, 40, 121.63),
        (14336, 70, 64, 8, 4, 12, 2, 2048, 59, 102.03),
        (14336, 70, 64, 8, 4, 12, 4, 2048, 73, 102.27),
    )
    for table, policy in ((half, _HALF), (full, _FULL_GRADIENTS)):
        for hidden, layers, heads, dp, tp, pp, each, sequences, gib, seconds in table:
            gpus = dp * tp * pp
            yield row(
                f"bloom {hidden}x{layers}, {heads} heads, dp{dp} tp{tp} pp{pp}, mbs {each}, {policy.precision}",
                "bigscience, chronicles-prequel",
                gpt("bloom", layers, hidden, heads, 250880),
                _GPU,
                (sequences, 2048),
                replace(policy, microbatch=each),
                gpus=gpus,
                tp=tp,
                pp=pp,
                speed=sequences * 2048 / seconds / gpus,
                memory=gib,
                unmet=_WAITING if each == 1 and (dp, tp, pp) in _SLOW_STARTS else "",
            )
    yield from _misprints()
    whole = gpt("bloom", 72, 14336, 64, 250880)
    for dp, tp, pp, each in ((48, 8, 1, 1), (32, 2, 6, 2), (32, 2, 6, 1)):
        yield row(
            f"bloom 14336x72, dp{dp} tp{tp} pp{pp}, mbs {each}: out of memory",
            "bigscience, chronicles-prequel",
            whole,
            _GPU,
            (2048 // (dp * each) * dp * each, 2048),
            replace(_HALF, microbatch=each),
            gpus=dp * tp * pp,
            tp=tp,
            pp=pp,
            fits=False,
        )
