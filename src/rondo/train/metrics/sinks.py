"""Metric loggers of a job besides its own `metrics.jsonl`, and the profiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch

from rondo.jobs.job import Job
from rondo.train.config import MetricsConfig
from rondo.train.metrics import trainjob
from rondo.train.metrics.profile import Profiler

OnStep = Callable[[int, dict[str, float]], None]


class Sink(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


@contextmanager
def telling(
    config: MetricsConfig,
    job: Job,
    device: torch.device,
    also: OnStep | None = None,
    rank: int = 0,
    profile: str = "",
    section: str = "train",
) -> Iterator[OnStep]:
    """Yields the callback for each step, on every rank of a job; only the first rank forwards metrics. Libraries of
    unused loggers are not imported. `section` is the config's section, and part of Prometheus's names.
    """
    opened = list[Sink]()

    def tell(step: int, metrics: dict[str, float]) -> None:
        for sink in opened:
            sink.log(step, metrics)
        if also is not None:
            also(step, metrics)

    try:
        opened.append(Profiler(job.path / "profile", device, "" if rank else profile, rank))
        for sink in () if rank else _asked_for(config, job, section):
            opened.append(sink)
        yield tell
    finally:
        for sink in opened:
            sink.close()


def _asked_for(config: MetricsConfig, job: Job, section: str) -> Iterator[Sink]:
    if config.port is not None:
        from rondo.train.metrics.prometheus import Prometheus

        yield Prometheus(job.short, job.path, config.host, config.port, section)
    if trainjob.URL in os.environ:
        yield trainjob.TrainJobStatus(int(job.spec().get("config", {}).get("steps") or 0))
    if config.tensorboard:
        from rondo.train.metrics.events import EventFile

        yield EventFile(job.path / "tensorboard")
    if config.wandb:
        from rondo.train.metrics.wandb import Wandb

        yield Wandb(config, job.short, job.path, job.spec().get("config", {}), section)
