"""Resource request of a job: nodes, ranks, GPUs, memory and time. Every launcher requests these."""

from __future__ import annotations

from dataclasses import dataclass

from rondo.base.errors import InvalidRequest
from rondo.jobs.spec import JobSpec

ONE_PROCESS = frozenset(["rl"])
"""Kinds of jobs whose process starts all others itself."""


@dataclass(frozen=True)
class ResourceRequest:
    nodes: int = 1
    ranks_per_node: int = 1
    gpus_per_node: int = 0
    cpus_per_rank: int = 1
    memory: int | None = None
    """MiB on each node."""
    time_limit: int | None = None
    """Seconds of one attempt. Then the job saves, and continues in another attempt."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def cpus_per_node(self) -> int:
        return self.ranks_per_node * self.cpus_per_rank


def request_of(spec: JobSpec, time_limit: int | None = None) -> ResourceRequest:
    """The request of a specification: a rank for each GPU, or one on each node. `time_limit` is the default."""
    told = spec.resources
    nodes, gpus = max(told.get("nodes", 1), 1), told.get("gpus", 0)
    one = spec.kind in ONE_PROCESS
    ranks = told.get("ranks") or (1 if one else max(gpus, nodes))
    if one and (ranks > 1 or nodes > 1):
        field = "ranks" if ranks > 1 else "nodes"
        raise InvalidRequest(
            f"A job of the kind {spec.kind} has one process: leave resources.{field} out.",
            param=f"resources.{field}",
        )
    for name, number in (("gpus", gpus), ("ranks", ranks)):
        if number % nodes:
            raise InvalidRequest(
                f"resources.{name} is {number}, which is not divisible by {nodes} nodes.",
                param=f"resources.{name}",
            )
    return ResourceRequest(
        nodes=nodes,
        ranks_per_node=ranks // nodes,
        gpus_per_node=gpus // nodes,
        cpus_per_rank=max(told.get("cpus", 1), 1),
        memory=told.get("memory"),
        time_limit=told.get("time_limit") or time_limit,
    )
