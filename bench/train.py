"""Training speed: whole steps of a Llama of 30M parameters in bf16, 4 documents of 512 tokens each, on all cores.

A step is the forward and backward pass over the same 2,048 tokens, clipping and fused AdamW. All sides begin with the
same weights, which lie in a folder in Hugging Face layout, and take the same batches in the same order; the losses of
their first steps must agree. Where the processor has no bf16 instructions PyTorch emulates them at a fraction of its
fp32 speed, so the peers take the weights in fp32 there; ours computes in bf16 everywhere, and in fp32 beside it.

Peers: transformers' Trainer; plain PyTorch, which is transformers' model under torch.compile in a loop of a few lines;
litgpt's own model and loop, compiled too. Each is a process of its own that sleeps while another is measured; the
sides take turns. The limit is what the cores multiply in registers, and the share that our step reaches of it is MFU
with attention counted in full.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

# ruff: isort: off
# Before torch, which reads what it sets when it is loaded.
from common import THREADS, Report, arguments, median, say, seconds

import numpy as np
import torch

# ruff: isort: on
import peers
from rondo import models
from rondo.data.batching.packing import PackedRow, flat_row
from rondo.models.decoder import Decoder
from rondo.ops.gemm.linear import cpu_multiplies_bf16
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy
from rondo.train.metrics.flops import Flops
from rondo.train.metrics.peak import peak_of

LENGTH, DOCUMENTS, BATCHES = 512, 4, 8
LR = 1e-4
PEERS = {
    "trainer": "transformers' Trainer",
    "compiled": "plain PyTorch with torch.compile",
    "litgpt": "litgpt's loop, compiled",
}
ENVIRONMENTS = {"trainer": "transformers", "compiled": "transformers", "litgpt": "litgpt"}


def shape(quick: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 6144,
        "hidden_size": 128 if quick else 512,
        "intermediate_size": 352 if quick else 1408,
        "num_hidden_layers": 2 if quick else 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "max_position_embeddings": LENGTH,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


class Ours:
    def __init__(self, folder: Path, batches: np.ndarray, dtype: torch.dtype) -> None:
        model: Decoder = models.load(folder, dtype=dtype)
        self.flops = Flops(model)
        self.learner = Learner(model, OptimConfig(lr=LR, weight_decay=0.1, clip=1.0))
        self.rows = [_row(batch) for batch in batches]
        self.losses: list[float] = []

    def __call__(self, steps: int) -> list[float]:
        return [seconds(self.step) for _ in range(steps)]

    def step(self) -> None:
        row = self.rows[len(self.losses) % len(self.rows)]
        metrics = self.learner.forward_backward([row], cross_entropy)
        self.learner.optim_step(LR)
        self.losses.append(metrics["loss"])


def _row(batch: np.ndarray) -> PackedRow:
    return flat_row(list(batch), [np.ones(batch.shape[1], np.float32)] * len(batch))


class Theirs(peers.Peer):
    def __init__(self, side: str, settings: dict[str, Any]) -> None:
        super().__init__(ENVIRONMENTS[side], "_train.py", {"side": side, **settings})
        self.losses: list[float] = []

    def __call__(self, steps: int) -> list[float]:
        answer = self.ask(steps=steps)
        self.losses += answer["losses"]
        return list(answer["seconds"])


def main() -> None:
    options = arguments(__doc__ or "", **PEERS)
    torch.set_num_threads(THREADS)
    rounds, steps, warm = (2, 1, 1) if options.quick else (7, 4, 3)
    report = Report("train")
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        folder = Path(root) / "model"
        models.save(models.new(shape(options.quick), seed=0, dtype=torch.bfloat16), folder)
        random = np.random.default_rng(0)
        batches = random.integers(2, 6144, (BATCHES, DOCUMENTS, LENGTH + 1))
        np.save(Path(root) / "batches.npy", batches)
        sides: dict[str, Callable[[int], list[float]]] = {
            "rondo": Ours(folder, batches, torch.bfloat16),
            "rondo, fp32": Ours(folder, batches, torch.float32),
        }
        settings = {
            "model": str(folder),
            "batches": str(Path(root) / "batches.npy"),
            "output": str(Path(root) / "output"),
            "threads": THREADS,
            "lr": LR,
            "dtype": "bfloat16" if cpu_multiplies_bf16() else "float32",
        }
        for name in options.peers:
            try:
                sides[name] = stack.enter_context(Theirs(name, settings))
            except peers.Absent as absent:
                report.peers[name] = {"absent": "absent"}
                report.notes.append(f"{name}: {absent}")
        for name, side in sides.items():
            say(f"{name}: warming up")
            side(warm)
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                taken[name] += side(steps)
        say(str({name: [round(each, 3) for each in found] for name, found in taken.items()}))
        compare(report, sides)
        finish(report, {name: median(found) for name, found in taken.items()}, sides["rondo"])
    report.notes.append(
        f"{THREADS} threads, load average {os.getloadavg()[0]:.1f}; peers in {settings['dtype']}; medians of "
        f"{rounds} turns of {steps} steps"
    )
    report.show(options.json)


def compare(report: Report, sides: dict[str, Any]) -> None:
    """They train the same model on the same tokens, or they cannot be compared."""
    first = {name: side.losses[0] for name, side in sides.items()}
    report.notes.append("loss of the first step: " + ", ".join(f"{n} {x:.4f}" for n, x in first.items()))
    own = first["rondo"]
    if any(abs(loss - own) > 0.01 * own for loss in first.values()):
        sys.exit(f"the sides did not do the same work: {report.notes[-1]}")


def finish(report: Report, taken: dict[str, float], ours: Ours) -> None:
    tokens = DOCUMENTS * LENGTH
    figure, again = "bf16, tokens/s", "fp32, tokens/s"
    report.ours[figure] = tokens / taken["rondo"]
    report.ours[again] = tokens / taken["rondo, fp32"]
    for name in taken.keys() & PEERS.keys():
        report.peers[name] = {figure: tokens / taken[name]}
        report.ratios[f"tokens/s, rondo / {name}"] = taken[name] / taken["rondo"]
    work = ours.flops.of(ours.rows[:1])
    peak = peak_of(torch.device("cpu"), torch.bfloat16)
    assert peak is not None
    report.ours["bf16, share of the peak"] = work.full / taken["rondo"] / peak.flops
    report.limit[figure] = tokens * peak.flops / work.full
    report.limit["bf16, share of the peak"] = 1.0
    report.limit["how"] = "products of numbers in registers, with as many threads"
    report.notes.append(
        f"the peak is {peak.flops / 1e9:.0f} Gflop/s; a step is {work.full / 1e9:.0f} Gflop, "
        f"{work.causal / 1e9:.0f} without what the mask hides"
    )


if __name__ == "__main__":
    main()
