"""What a step's row says, beside figures that follow from others or that somebody else measured."""

import math
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from rondo.data.batching.loader import Batch
from rondo.data.batching.packing import Document, pack
from rondo.data.batching.sampler import Position
from rondo.ops.measure.limits import measure_limits
from rondo.plan.cost.cluster import GPUS, gpu_called
from rondo.train.config import MetricsConfig, TrainConfig
from rondo.train.learner.learner import Learner, Metrics
from rondo.train.loop import train
from rondo.train.metrics.clock import PhaseTimer
from rondo.train.metrics.memory import memory_of
from rondo.train.metrics.meter import perplexity
from rondo.train.metrics.peak import peak_of
from support.tiny import TINY_MOE, VOCAB, tiny_model

CPU = torch.device("cpu")


def steps_of(config: TrainConfig, **changes: object) -> list[Metrics]:
    random = np.random.default_rng(0)
    documents = [Document(random.integers(0, VOCAB, 21).tolist(), [1.0] * 21) for _ in range(3)]
    rows = pack(documents, 40)
    found: list[Metrics] = []
    batch = Batch(rows, sum(row.valid for row in rows), Position(), 0.0, 0.0)
    train(
        Learner(tiny_model(**changes), config),
        lambda position: batch,
        config,
        on_step=lambda _, metrics: found.append(metrics),
    )
    return found


def test_a_row_says_what_a_step_was() -> None:
    config = TrainConfig(steps=2, metrics=MetricsConfig(peak=0.5))
    first, last = steps_of(config, **TINY_MOE)
    assert first["perplexity"] == pytest.approx(math.exp(first["loss"]))
    assert first["tokens"] == first["input_tokens"] == 60
    phases = [last[f"seconds/{phase}"] for phase in ("load", "forward_backward", "optimizer")]
    assert last["seconds"] == pytest.approx(sum(phases))
    assert last["loader_share"] == pytest.approx(phases[0] / last["seconds"])
    assert last["tokens_per_second"] == last["tokens_per_second_rank"]
    assert last["tokens_per_second"] == pytest.approx(60 / last["seconds"])
    assert last["peak_flops/fp32"] == 0.5e12
    assert last["mfu"] == pytest.approx(last["flops"] / last["seconds"] / 0.5e12)
    assert last["mfu_causal"] == pytest.approx(last["mfu"] * last["flops_causal"] / last["flops"])
    assert {"grad_norm", "lr", "expert_load_max", "epochs", "unfilled"} <= last.keys()


def test_a_cpu_is_measured_once_and_is_what_its_limits_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same machine a moment later: other work may take a part of either."""
    found = peak_of(CPU, torch.bfloat16)
    assert found is not None
    assert found.precision == "bf16"
    assert 0.3 < found.flops / measure_limits(0.3).rate("bf16") < 3
    monkeypatch.setattr("rondo.train.metrics.peak.measure_flops", None)
    assert peak_of(CPU, torch.bfloat16) == found


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("AMD Instinct MI300X", "mi300x"),
        ("Tesla T4", None),
    ],
)
def test_cards_are_known_by_their_own_names(name: str, known: str | None) -> None:
    assert gpu_called(name) == (GPUS[known] if known else None)


def test_memory_is_what_the_system_says() -> None:
    found = memory_of(CPU)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert found["memory/resident_peak"] == pytest.approx(most, rel=0.05)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert found["memory/resident"] == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE"), rel=0.05)


def test_a_clock_adds_up_and_begins_again() -> None:
    clock = PhaseTimer()
    for _ in range(2):
        with clock("load"):
            pass
    with clock("optimizer"):
        pass
    assert list(clock.take()) == ["load", "optimizer"]
    assert clock.take() == {}


def test_perplexity_of_a_loss_beyond_floats() -> None:
    assert perplexity(0.0) == 1
    assert perplexity(1e4) == math.inf
    assert math.isnan(perplexity(math.nan))
