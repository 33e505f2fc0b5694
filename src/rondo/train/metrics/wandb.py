"""Weights & Biases: a job is a run of the same name, which continues if the job resumes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rondo.base.errors import MissingExtra, Unavailable
from rondo.train.config import MetricsConfig

SECONDS = 60


class Wandb:
    def __init__(
        self,
        metrics: MetricsConfig,
        name: str,
        folder: Path,
        config: Mapping[str, Any],
        section: str = "train",
    ) -> None:
        wandb = library()
        settings = wandb.Settings(init_timeout=SECONDS, silent=True, x_disable_stats=True, console="off")
        try:
            self._run = wandb.init(
                project=metrics.wandb,
                entity=metrics.wandb_entity or None,
                id=name,
                name=metrics.wandb_name or name,
                tags=metrics.wandb_tags or None,
                dir=str(folder),
                config=dict(config),
                resume="allow",
                settings=settings,
            )
        except (wandb.errors.Error, OSError) as error:
            raise Unavailable(
                f"Weights & Biases rejected the job: {error}. Log in with `wandb login`, or set "
                "WANDB_MODE=offline to log to local files only.",
                param=f"{section}.metrics.wandb",
            ) from error
        # Steps repeated after a crash are below the run's own counter, which only increases.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()


def library() -> Any:
    try:
        import wandb
    except ImportError:
        raise MissingExtra("wandb", "wandb") from None
    return wandb
