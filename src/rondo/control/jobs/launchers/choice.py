"""Launchers of a gateway, by its settings. Those that need an HTTP client are imported where they are chosen."""

from __future__ import annotations

from rondo.control.config import JobsConfig
from rondo.control.jobs.launchers.launcher import Launcher
from rondo.control.jobs.launchers.local import LocalLauncher
from rondo.control.jobs.launchers.slurm.launcher import SlurmLauncher


def launchers_of(config: JobsConfig) -> dict[str, Launcher]:
    """This machine, the default launcher and those in `jobs.launchers`, by the values of `jobs.launcher`."""
    return {
        name: _launcher(name, config) for name in dict.fromkeys(["local", config.launcher, *config.launchers])
    }


def _launcher(name: str, config: JobsConfig) -> Launcher:
    if name == "kubernetes":
        from rondo.control.jobs.launchers.kubernetes.launcher import KubernetesLauncher

        return KubernetesLauncher(config.kubernetes, config.time_limit)
    if name == "ray":
        from rondo.control.jobs.launchers.ray_jobs import RayLauncher

        return RayLauncher(config.ray, config.time_limit)
    if name == "slurm":
        return SlurmLauncher(config.slurm, config.time_limit)
    return LocalLauncher(
        slots=config.slots, gpus=tuple(config.gpus), nice=config.nice, time_limit=config.time_limit
    )
