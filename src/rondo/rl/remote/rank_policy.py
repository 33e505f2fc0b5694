"""The policy of a learner on several ranks of one host: each rank writes its own shards into the pushed version."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rondo.base.errors import StorageError
from rondo.base.storage.files import atomic_dir
from rondo.models import Decoder
from rondo.models.adapters import adapter_of
from rondo.models.files.checkpoint import KEPT_AS_STORED, MAX_SHARD_BYTES
from rondo.models.files.mapping import plain_outgoing
from rondo.models.files.safetensors_write import write
from rondo.parallel.ranks.mesh import Mesh
from rondo.rl.config import RlConfig
from rondo.rl.remote.config import FarConfig
from rondo.rl.rollout.replica import pushed_type
from rondo.train.learner.learner import Learner
from rondo.weights.publisher import Publisher
from rondo.weights.shards import LearnerRanks, Shard, convert, is_interleaved, shard_of


def rank_policy(model: Decoder, config: RlConfig, mesh: Mesh | None) -> RankPolicy | None:
    """The policy of the ranks, before a learner divides it; None if a version is gathered on the first rank: over
    several hosts, with model folders as the transport, an adapter, quantized weights, or parameters that are split
    among ranks and interleaved in the checkpoint."""
    if mesh is None or config.learner != "native" or config.engine.transport == "folder":
        return None
    if adapter_of(model) is not None or model.config.quantization is not None:
        return None
    frozen = (name for name, p in model.named_parameters() if not p.requires_grad)
    if any(map(is_interleaved, model.slots())) or not all(name.endswith(KEPT_AS_STORED) for name in frozen):
        return None
    group = mesh.host_group()
    if not share_memory(LearnerRanks(group), config.engine.weights.folder):
        return None
    return RankPolicy(model, pushed_type(model, config), group)


def share_memory(ranks: LearnerRanks, folder: str) -> bool:
    """Whether all ranks are on one host, with one folder of segments. Every rank calls it."""
    path = ranks.by_first(lambda: _probe(folder))
    found = ranks.from_all((socket.gethostname(), bool(path) and os.path.exists(path)))
    if ranks.rank == 0 and path:
        os.unlink(path)
    return len(set(found)) == 1 and found[0][1]


def _probe(folder: str) -> str:
    with suppress(OSError):
        handle, path = tempfile.mkstemp(prefix="rondo-probe-", dir=folder)
        os.close(handle)
        return path
    return ""


class RankPolicy:
    def __init__(self, model: Decoder, dtype: torch.dtype, group: Any) -> None:
        """`model` is the whole policy, `dtype` the type of pushed weights, `group` has all ranks."""
        self.group = group
        self._ranks, self._dtype = LearnerRanks(group), dtype
        self._table, self._hf = model.slots(), dict(model.config.hf or {})
        self._learner: Learner | None = None
        first: dict[int, str] = {}
        self._names = {
            name: first.setdefault(id(parameter), name)
            for name, parameter in model.named_parameters(remove_duplicate=False)
        }
        """For each name of a parameter its first name, which differs if the parameter is tied."""

    @property
    def learner(self) -> Learner:
        assert self._learner is not None
        return self._learner

    def attach(self, learner: Learner) -> None:
        """Sets the learner that has divided the policy."""
        self._learner = learner

    def shards(self) -> Iterator[Shard]:
        """This rank's shards, as views that are converted while they are written."""
        named = self.learner.model.named_parameters(remove_duplicate=False)
        return convert(self._table, {name: shard_of(name, p, self._type(name)) for name, p in named})

    @torch.no_grad()
    def gather(self, folder: Path) -> None:
        """Writes a model folder on the first rank, which holds the whole policy meanwhile. Every rank calls it."""
        whole: dict[str, Tensor] = {}
        for name, tensor in self.learner.gathered(self._dtype):
            if self._ranks.rank == 0:
                whole[name] = tensor.cpu()
        self._ranks.by_first(lambda: self._write(folder, whole))

    def _write(self, folder: Path, whole: dict[str, Tensor]) -> None:
        parameters = {name: whole[first] for name, first in self._names.items()}
        with atomic_dir(folder, needed=sum(tensor.nbytes for tensor in whole.values())) as partial:
            (partial / "config.json").write_text(json.dumps(self._hf, indent=2) + "\n")
            write(partial, plain_outgoing(self._table, parameters), MAX_SHARD_BYTES, lambda count: None)

    def _type(self, name: str) -> torch.dtype:
        return torch.float32 if name.endswith(KEPT_AS_STORED) else self._dtype


class FollowingPush:
    """The pushes of every rank but the first: it writes its shards when the first rank pushes a version."""

    def __init__(self, policy: RankPolicy, config: FarConfig) -> None:
        """Takes part in the first push of the first rank's `RemotePush`."""
        self._policy, self._config = policy, config
        self._publisher: Publisher | None = Publisher("policy", {}, config.weights, group=policy.group)
        publisher = self._publisher
        if not self._fits(lambda: publisher.register(policy.shards)):
            self._publisher = None
        self.push()

    def push(self) -> None:
        publisher = self._publisher
        if publisher is None or not self._fits(lambda: publisher.push(0)):  # rank 0 has the version
            self._policy.gather(Path())

    def _fits(self, work: Callable[[], object]) -> bool:
        """False if shared memory is full on the first rank, which then pushes a folder."""
        try:
            work()
        except StorageError:
            if not self._config.may_use_folders:
                raise
            return False
        return True
