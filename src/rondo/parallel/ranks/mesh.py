"""The ranks of a training job and their process groups."""

from __future__ import annotations

import ipaddress
import os
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from rondo.base.errors import Unavailable
from rondo.models.architecture import ModelConfig
from rondo.parallel.config import LayoutConfig
from rondo.parallel.layout.degrees import Degrees, degrees
from rondo.parallel.ranks.world import World

dist: Any = torch.distributed
"""torch.distributed as Any: its types are incomplete."""
T = TypeVar("T")


class Mesh:
    """Ranks in the order pp, dp, cp, tp; the last ones are adjacent, so that ranks with the most communication share a
    machine.

    Parameters are distributed over `states` ("pp", "replicate", "shard", "tp"), experts over `experts` (the same, with
    "expert_shard" and "ep" for the last two). `tp`, `cp`, `pp`, `dp` (ranks with different rows) and `stage` (all ranks
    with the same layers) are process groups.
    """

    def __init__(self, degrees: Degrees, world: World, device: torch.device) -> None:
        self.degrees = degrees
        self.world = world
        self.device = device
        d, patience = degrees, timedelta(seconds=degrees.config.timeout)
        mesh_of = partial(_mesh_of, device, patience)
        self.states = mesh_of((d.pp, d.replicate, d.shard, d.tp), ("pp", "replicate", "shard", "tp"))
        self.experts: DeviceMesh | None = None
        if d.ep > 1:
            names = ("pp", "replicate", "expert_shard", "ep")
            self.experts = mesh_of((d.pp, d.replicate, d.expert_shard, d.ep), names)
        tokens = mesh_of((d.pp, d.dp, d.cp, d.tp), ("pp", "dp", "cp", "tp"))
        self.dp, self.tp, self.cp, self.pp = (tokens[name].get_group() for name in ("dp", "tp", "cp", "pp"))
        self.dp_rank, self.cp_rank, self.tp_rank, self.pp_rank = (
            tokens[name].get_local_rank() for name in ("dp", "cp", "tp", "pp")
        )
        self.stage = _group_of(torch.arange(d.ranks).view(d.pp, -1), patience)

    @property
    def sharding(self) -> DeviceMesh:
        """Mesh for FSDP: ("replicate", "shard")."""
        return self.states["replicate", "shard"]

    @property
    def expert_sharding(self) -> DeviceMesh:
        assert self.experts is not None
        return self.experts["replicate", "expert_shard"]

    def total(self, own: Tensor) -> Tensor:
        """Sum over all ranks that have the same layers."""
        if dist.get_world_size(self.stage) == 1:
            return own
        found = own.clone()
        dist.all_reduce(found, group=self.stage)
        return found

    def said(self, own: T) -> list[T]:
        """Values of the ranks that share the batch. Ranks that share a row have the same value, which counts once."""
        return said(own, self.dp)

    def host_group(self) -> Any:
        """An additional group of all ranks, for objects and tensors in host memory, independent of other
        communication.
        """
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=self.degrees.config.timeout))

    def said_by_stages(self, own: T) -> list[T]:
        """Values of each stage of the pipeline."""
        return said(own, self.pp)

    def told(self, own: T, stage: int) -> T:
        """The value of the given pipeline stage, broadcast to all stages."""
        found = [own]
        dist.broadcast_object_list(found, dist.get_global_rank(self.pp, stage), group=self.pp)
        return found[0]


def join(config: LayoutConfig, world: World, model: ModelConfig, device: torch.device) -> Mesh:
    """The mesh of the ranks; they rendezvous here unless they have done so before. All ranks must pass the same
    config.
    """
    found = degrees(config, world.size, model)
    if not dist.is_initialized():
        meet(world, config.timeout, device)
    return Mesh(found, world, device)


def meet(world: World, timeout: float, device: torch.device, section: str = "train") -> None:
    if _loopback(world.address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # flight recorder entries, for hangs
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    patience = timedelta(seconds=timeout)
    try:
        store = store_of(world, patience, serve=True)
        dist.init_process_group(
            backend, store=store, rank=world.rank, world_size=world.size, timeout=patience
        )
    except (dist.DistError, RuntimeError) as error:
        raise Unavailable(
            f"rank {world.rank} did not meet the others of {world.size} within {timeout:.0f} s at {world.address}:"
            f"{world.port}. Have all ranks started, and do they reach that address? MASTER_ADDR and MASTER_PORT set "
            f"it, {section}.layout.timeout how long to wait. ({' '.join(str(error).split())[:200]})"
        ) from error


def store_of(world: World, patience: timedelta, serve: bool = False) -> Any:
    """A connection to the rendezvous store. torchrun uses one store for all attempts of a job; the prefix hides the
    addresses of ranks of earlier attempts.
    """
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    first = serve and world.first and not kept
    store = dist.TCPStore(
        world.address, world.port, is_master=first, wait_for_workers=False, timeout=patience
    )
    return dist.PrefixStore(f"rondo/{attempt}", store)


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _mesh_of(
    device: torch.device, patience: timedelta, sizes: tuple[int, ...], names: tuple[str, ...]
) -> DeviceMesh:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    if dist.get_backend() != "fake":
        for group in mesh.get_all_groups():  # torch sets the default timeout of half an hour
            dist.distributed_c10d._set_pg_timeout(patience, group)
    return mesh


def _group_of(rows: torch.Tensor, patience: timedelta) -> Any:
    """Process group of this rank, one per row; every rank creates all groups in the same order."""
    own = None
    for row in rows.tolist():
        group = dist.new_group(row, timeout=patience)
        if dist.get_rank() in row:
            own = group
    return own


def said(own: T, group: Any) -> list[T]:
    """Values of each rank of the group."""
    size = dist.get_world_size(group)
    if size == 1:
        return [own]
    found: list[Any] = [None] * size
    dist.all_gather_object(found, own, group=group)
    return found


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
