"""Whole models: decode rate of 1 to 64 requests and the first token of a long prompt, beside three other engines.

The model has Qwen3 0.6B's shape, with weights in bf16, in int8 and in 4 bits. All sides have the same random weights,
prompts and threads, keys and values in 16 bits, and give greedy answers of the same length: 128 tokens after 128. The
decode rate is of decoding alone: tokens over time from when all requests have their first token until the first of them
is done, so that no prompt is counted. Prompts are measured by themselves: the seconds to the first token after 2,048.

bf16 is the type of all sides' weights, as a GGUF file for llama.cpp; where the processor has no instructions for it,
vLLM and transformers, which would emulate them, compute in fp32, and a note says so. Since each side rounds at other
places, near ties fall differently: a note says how many of the first tokens are ours.

int8 is a scale a row, and rows of activations rounded to int8 as well, as `rondo model quantize` writes it; 4-bit is a
scale for 128 columns. The head is int8 in both, where `quantize` leaves it as it is. llama.cpp has blocks of 32 with a
scale each, q8_0, and q4_0 with a head in q8_0, and rounds activations to int8.

Sides take turns, each in a process or a model of its own that is gone before the next one starts; what is slow at first
is done before the clock starts. The limit is the time in which a step's bytes are read (all weights once, and the keys
and values) or its products computed, whichever is longer, at the best rates that were measured between the turns: of
memory, and of the processor's instructions on numbers in registers, of 8 bits for int8, of 16 for 4-bit weights.
"""

import argparse
import gc
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

# ruff: isort: off
# Before torch, which reads what it sets when it is loaded.
from common import THREADS, Report, arguments, median, say

import torch

# ruff: isort: on
import peers
from generators import QUANTIZED, SIDES, Answers, Work, library_dtype, turn
from rondo.engine.kv.cache import block_bytes
from rondo.models import load
from rondo.ops.measure.limits import HardwareLimits, measure_limits
from serving import agreement
from small_model import write_qwen3_06b, write_small_model

BATCHES = (1, 4, 8, 16, 64)
TOKENS, LONG = 128, 2048
WEIGHTS = {"bf16": 2.0, "int8": 1.0, "4-bit": 0.5}
"""Bytes of a layer's weight, without scales."""
ARITHMETIC = {"bf16": "bf16", "int8": "int8", "4-bit": "int16"}
"""What is multiplied where a weight is; elsewhere numbers in bf16."""
FIRST = 8
"""Tokens of an answer that are compared."""
SHARE, BESIDE = "of the limit", "beside the best peer"


@dataclass
class Found:
    """What the turns gave."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By figure and side."""
    limits: list[HardwareLimits] = field(default_factory=list)
    agreed: dict[str, int] = field(default_factory=dict)
    compared: int = 0
    absent: dict[str, str] = field(default_factory=dict)
    """Why, by figure and side."""


def rounds(found: Found, work: Work, names: Sequence[str], count: int, budget: float) -> None:
    values: dict[str, list[float]] = {name: [] for name in names}
    found.values[work.figure] = values
    for i in range(count):
        found.limits.append(measure_limits(budget))
        answers: dict[str, Answers] = {}
        for name in [name for name in names if f"{work.figure}, {name}" not in found.absent]:
            try:
                answers[name] = turn(name, work)
            except peers.Absent as reason:
                found.absent[f"{work.figure}, {name}"] = str(reason)
                continue
            finally:
                gc.collect()
            values[name].append(answers[name].value(work))
            say(f"{work.figure}, round {i + 1}: {name}: {values[name][-1]:.3g}")
        if i == 0 and work.weights == "bf16":
            compare(found, answers)


def compare(found: Found, answers: dict[str, Answers]) -> None:
    own = [tokens[:FIRST] for tokens in answers.pop("rondo").tokens]
    found.compared += sum(map(len, own))
    for name, each in answers.items():
        theirs = [tokens[:FIRST] for tokens in each.tokens]
        agreed = sum(agreement(*pair) for pair in zip(own, theirs, strict=True))
        found.agreed[name] = found.agreed.get(name, 0) + agreed


@dataclass(frozen=True)
class Sizes:
    """Parameters that are multiplied with, and what a token of the past adds: bytes read and operations."""

    layers: int
    head: int
    bytes: float
    flops: float


def sizes_of(folder: Path) -> Sizes:
    model = load(folder)
    specs = model.attention_specs()
    return Sizes(
        sum(parameter.numel() for parameter in model.layers.parameters()),
        model.head.out.weight.numel(),
        block_bytes(specs, 1, torch.bfloat16),
        sum(2 * spec.num_heads * (spec.head_dim + spec.value_dim) for spec in specs),
    )


def limit_of(work: Work, sizes: Sizes, limits: HardwareLimits) -> float:
    """Of the figure; tokens of a prompt see half of it, and those of an answer all of it and half the answer."""
    layers, head = WEIGHTS[work.weights] * sizes.layers, max(WEIGHTS[work.weights], 1.0) * sizes.head
    rate, others = limits.rate(ARITHMETIC[work.weights]), limits.rate("bf16")
    if not work.decodes:
        products = 2 * (work.prompt * sizes.layers + sizes.head) / rate
        return max((layers + head) / limits.read, products + work.prompt**2 / 2 * sizes.flops / others)
    past = work.prompt + work.answer / 2
    products = 2 * (sizes.layers + sizes.head) / rate + past * sizes.flops / others
    return work.batch / max(
        (layers + head + work.batch * past * sizes.bytes) / limits.read, work.batch * products
    )


def best_of(found: list[HardwareLimits]) -> HardwareLimits:
    flops = {kind: max(limits.flops[kind] for limits in found) for kind in found[0].flops}
    return HardwareLimits(max(limits.read for limits in found), flops)


def enter(report: Report, works: list[Work], found: Found, names: list[str]) -> None:
    limits, sizes = best_of(found.limits), sizes_of(works[0].folder)
    rates = ", ".join(f"{rate / 1e9:.3g} Gflop/s in {kind}" for kind, rate in limits.flops.items())
    report.limit["how"] = f"{limits.read / 1e9:.1f} GB/s read, {rates}"
    report.columns = {SHARE: {}, BESIDE: {}}
    report.peers = {name: {} for name in names}
    for work in works:
        figure = work.figure
        medians = {name: median(values) for name, values in found.values[figure].items() if values}
        report.ours[figure] = own = medians.pop("rondo")
        report.limit[figure] = limit = limit_of(work, sizes, limits)
        report.columns[SHARE][figure] = own / limit if work.decodes else limit / own
        for name, value in medians.items():
            report.peers[name][figure] = value
        if medians:
            best = max(medians.values()) if work.decodes else min(medians.values())
            report.columns[BESIDE][figure] = own / best if work.decodes else best / own
        for name in names:
            if f"{figure}, {name}" in found.absent:
                report.peers[name][figure] = "absent"
    report.notes += dict.fromkeys(found.absent.values())
    report.notes += [
        f"{name}: {agreed} of the first {found.compared} greedy tokens are ours, in bf16"
        for name, agreed in found.agreed.items()
    ]
    report.notes.append(f"the limit: {report.limit['how']}")


def works_of(folder: Path, batches: Sequence[int], weights: Sequence[str], quick: bool) -> list[Work]:
    rng = random.Random(0)
    tokens, long = (16, 256) if quick else (TOKENS, LONG)

    def prompts(count: int, length: int) -> list[list[int]]:
        return [rng.choices(range(10, 250), k=length) for _ in range(count)]

    works = []
    for name in weights:
        sizes = batches if name == "bf16" else (1,)
        works += [Work(folder, name, prompts(size, tokens), tokens) for size in sizes]
        works.append(Work(folder, name, prompts(1, long), 1))
    return works


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--batches", type=lambda text: [int(part) for part in text.split(",") if part])
    parser.add_argument("--weights", type=lambda text: text.split(","), default=list(WEIGHTS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--keep", type=Path)
    own, rest = parser.parse_known_args()
    options = arguments(__doc__.splitlines()[0], rest, **{name: "" for name in SIDES if name != "rondo"})
    if unknown := [name for name in own.weights if name not in WEIGHTS]:
        parser.error(f"unknown weights {unknown[0]!r}; known: {', '.join(WEIGHTS)}")
    torch.set_num_threads(THREADS)
    count = own.rounds or (1 if options.quick else 3)
    batches = ((4,) if options.quick else BATCHES) if own.batches is None else own.batches
    report, found = Report("whole_model"), Found()
    with tempfile.TemporaryDirectory() as root:
        folder = (own.keep or Path(root)) / ("4m-bf16" if options.quick else "0.6b")
        if not folder.exists():
            say("writes the model")
            write_small_model(folder, torch.bfloat16) if options.quick else write_qwen3_06b(folder)
        works = works_of(folder, batches, own.weights, options.quick)
        for work in works:
            names = ["rondo", *options.peers]
            if work.weights != "bf16":
                names = [name for name in names if name in QUANTIZED]
            rounds(found, work, names, count, 0.3 if options.quick else 3.0)
        enter(report, works, found, options.peers)
    if library_dtype() == "float32":
        report.notes.append(
            "vllm and transformers compute in fp32: this processor has no instructions for bf16"
        )
    report.notes.append(f"{THREADS} threads, medians of {count} rounds")
    report.show(options.json)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the peers end too
    main()
