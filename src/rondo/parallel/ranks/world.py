"""Rank of this process, from the environment that torchrun, mpirun or Slurm's srun sets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rondo.base.errors import ConfigError

PORT = 29500
"""Default rendezvous port, if MASTER_PORT is not set."""


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank among the ranks of this machine, which selects the device."""
    address: str = "127.0.0.1"
    port: int = PORT

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and reports to the user."""
        return self.rank == 0


@dataclass(frozen=True)
class _Launcher:
    """Names of a launcher's environment variables for rank, world size and local rank."""

    rank: str
    size: str
    local_rank: tuple[str, ...]


LAUNCHERS = (
    _Launcher("RANK", "WORLD_SIZE", ("LOCAL_RANK",)),  # torchrun
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",)),  # Open MPI
    _Launcher("PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK")),  # MPICH, Intel MPI
    # Number of tasks of the step; the batch script itself is one process, although its environment has the number of
    # tasks of the job.
    _Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_LOCALID",)),
)


def read_world(environment: Mapping[str, str] | None = None) -> World:
    """The rank and world size from the launcher's environment; a single process without a launcher."""
    environment = os.environ if environment is None else environment
    for launcher in LAUNCHERS:
        if launcher.rank in environment and launcher.size in environment:
            return _world(launcher, environment)
    return World()


def _world(launcher: _Launcher, environment: Mapping[str, str]) -> World:
    rank, size = _number(environment, launcher.rank), _number(environment, launcher.size)
    if not 0 <= rank < size:
        raise ConfigError(f"{launcher.rank}={rank} is not below {launcher.size}={size}")
    told = next((name for name in launcher.local_rank if name in environment), None)
    local = _number(environment, told) if told else 0
    slurm = launcher.rank.startswith("SLURM")
    address = environment.get("MASTER_ADDR") or (_first_host(environment) if slurm else "127.0.0.1")
    port = (
        _number(environment, "MASTER_PORT") if environment.get("MASTER_PORT") else _port(environment, slurm)
    )
    return World(rank, size, local, address, port)


def _port(environment: Mapping[str, str], slurm: bool) -> int:
    """Rendezvous port. It depends on the ID of the Slurm job, so that jobs on the same machine do not meet each
    other.
    """
    job = environment.get("SLURM_JOB_ID", "") if slurm else ""
    return 20000 + int(job) % 20000 if job.isdigit() else PORT


def _first_host(environment: Mapping[str, str]) -> str:
    """First host of a Slurm node list: gpu03 for `gpu[03-06,9],login`. A job step on a single machine uses
    127.0.0.1.
    """
    if environment.get("SLURM_STEP_NUM_NODES") == "1":
        return "127.0.0.1"
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""
    found = re.match(r"([^,\[]+)(?:\[(\d+))?", hosts)
    if not found:
        return "127.0.0.1"
    return found[1] + (found[2] or "")


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ConfigError(f"{name}={environment[name]!r} is not a number: the launcher sets it") from None
