"""Offloading of the optimizer's state: to a disk, or to host memory beside a GPU.

A step processes the parameters in blocks. While one block is updated, the state of the next one is read, and the state
of the previous one is written back. The update of a parameter does not depend on others, so results are equal to a run
without offloading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rondo.base.errors import ConfigError
from rondo.base.storage.paths import path_of
from rondo.parallel.tensor.own_part import local_of, with_local
from rondo.train.offload.disk_tensors import DiskTensorPool
from rondo.train.offload.streamed_layers import Streamed

if TYPE_CHECKING:
    from rondo.train.learner.learner import Learner

BLOCK = 8 << 20
"""Bytes of parameters per block. Up to three blocks and their states are in memory: the one in use, the next and the
previous one.
"""
Block = list[Tensor]


def offloaded(learner: Learner) -> Offloaded | None:
    """Offloading according to the learner's config; None if nothing is offloaded."""
    config, on_cpu = learner.config, _device(learner).type == "cpu"
    if config.offload == "none":
        return None
    _check(learner)
    shelf = DiskTensorPool(path_of(config.offload_to, "train.offload_to")) if config.offload_to else None
    working = learner.working
    if config.offload == "all" and learner.mesh is None and shelf is not None:
        Streamed(list(learner.computing.layers), shelf)
    if working is None or shelf is None or not on_cpu:
        return Offloaded(learner.optimizer, shelf)
    masters = [p for p in learner.model.parameters() if p.requires_grad]
    return Offloaded(learner.optimizer, shelf, masters, working.refresh)


def _check(learner: Learner) -> None:
    config, on_cpu = learner.config, _device(learner).type == "cpu"
    if on_cpu and not config.offload_to:
        raise ConfigError(
            "train.offload_to: which folder? A CPU's learner is in host memory already, and can be relieved to a disk "
            "alone.",
            param="train.offload_to",
        )
    if config.offload != "all":
        return
    if learner.mesh is not None and on_cpu:
        raise ConfigError(
            "train.offload: all is for one process on a CPU, or for ranks that have GPUs: choose optimizer.",
            param="train.offload",
        )
    if learner.mesh is None and not on_cpu:
        raise ConfigError(
            "train.offload: all divides parameters among several ranks on GPUs, and this is one: choose optimizer.",
            param="train.offload",
        )


def _device(learner: Learner) -> torch.device:
    """Device of the layers' computation; parameters sharded among ranks may lie in host memory."""
    return learner.model.device if learner.mesh is None else learner.mesh.device


class Offloaded:
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        shelf: DiskTensorPool | None,
        masters: Sequence[nn.Parameter] = (),
        updated: Callable[[Block], None] = lambda block: None,
    ) -> None:
        """State is stored on the shelf or, with None, in host memory. `masters` are stored on the shelf as well.
        `updated` is called for each block while it is in memory.
        """
        self._optimizer, self._shelf, self._updated = optimizer, shelf, updated
        self._threads = ThreadPoolExecutor(2, "offload")
        if shelf is not None:
            for master in masters:
                master.data = shelf.place(master.detach())

    def step(self) -> None:
        blocks = list(self._blocks())
        coming: Future[None] | None = None
        going: list[Future[None]] = []
        for i, block in enumerate(blocks):
            if coming is None:
                self._bring(block)
            else:
                coming.result()
            coming = self._threads.submit(self._bring, blocks[i + 1]) if i + 1 < len(blocks) else None
            with self._only(block), self._beside(block):
                self._optimizer.step()
                self._updated(block)
            self._shelve(block)
            going.append(self._threads.submit(self._let_go, block))
            if len(going) > 1:
                going.pop(0).result()
        for each in going:
            each.result()

    def reoffload(self) -> None:
        """Offloads states created in memory by another component, as targets for reading a checkpoint."""
        for parameter in self._optimizer.state:
            self._shelve([parameter])
            self._let_go([parameter])

    def _blocks(self) -> Iterator[Block]:
        block, size = Block(), 0
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                more = local_of(parameter.detach()).nbytes
                if block and size + more > BLOCK:
                    yield block
                    block, size = Block(), 0
                block.append(parameter)
                size += more
        if block:
            yield block

    @contextmanager
    def _only(self, block: Block) -> Iterator[None]:
        """Restricts the optimizer to the block's parameters."""
        wanted, groups = set(map(id, block)), self._optimizer.param_groups
        whole = [group["params"] for group in groups]
        for group, parameters in zip(groups, whole, strict=True):
            group["params"] = [p for p in parameters if id(p) in wanted]
        try:
            yield
        finally:
            for group, parameters in zip(groups, whole, strict=True):
                group["params"] = parameters

    @contextmanager
    def _beside(self, block: Block) -> Iterator[None]:
        """On a GPU, copies the block's state to the device, and back afterwards."""
        if all(p.device.type == "cpu" for p in block):
            yield
            return
        waiting = [(state, key, x) for p in block for state, key, x in self._states(p)]
        for state, key, x in waiting:
            state[key] = with_local(x, local_of(x).to(block[0].device, non_blocking=True))
        yield
        for state, key, x in waiting:
            local_of(x).copy_(local_of(state[key]))
            state[key] = x

    def _shelve(self, block: Block) -> None:
        """Offloads state that the optimizer or a checkpoint has created in memory."""
        for parameter in block:
            for state, key, x in list(self._states(parameter)):
                local = local_of(x)
                if self._shelf is not None and not self._shelf.holds(local):
                    state[key] = with_local(x, self._shelf.place(local))
                elif self._shelf is None and local.device.type != "cpu":
                    host = torch.empty_like(local, device="cpu", pin_memory=torch.cuda.is_available())
                    state[key] = with_local(x, host.copy_(local))

    def _states(self, parameter: Tensor) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
        """States of a parameter with one or more dimensions; a step count is not offloaded."""
        state = self._optimizer.state.get(parameter, {})
        for key, x in list(state.items()):
            if isinstance(x, Tensor) and x.ndim:
                yield state, key, x

    def _all(self, block: Block) -> list[Tensor]:
        return [local_of(x) for p in block for x in (p.detach(), *(x for _, _, x in self._states(p)))]

    def _bring(self, block: Block) -> None:
        if self._shelf is not None:
            self._shelf.bring(self._all(block))

    def _let_go(self, block: Block) -> None:
        if self._shelf is not None:
            self._shelf.let_go(self._all(block))
