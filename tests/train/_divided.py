"""What ranks that divide every layer send and keep, and the largest tensor they have: for `support.launch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from rondo.data.batching.packing import Document, pack
from rondo.models import Packed
from rondo.parallel.config import LayoutConfig
from rondo.parallel.ranks.mesh import join
from rondo.parallel.ranks.world import read_world
from rondo.parallel.tensor import rows
from rondo.parallel.tensor.tensor import divide
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy
from support.layouts import Outcome, on_ranks
from support.tiny import VOCAB, tiny_model
from support.wire import Wire

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
LENGTH = 64
CHECKPOINTING = ("none", "selective", "full")


def everything(
    cases: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> tuple[list[Outcome], Any, int]:
    return on_ranks(cases), {how: passed(how) for how in CHECKPOINTING}, kept(again=False) - kept(again=True)


def kept(*, again: bool) -> int:
    """Bytes of what half layers keep for their backward pass, in bf16; of their own rows, which they gather again, none
    count."""
    model = tiny_model(**LLAMA).to(torch.bfloat16)
    world = read_world()
    mesh = join(LayoutConfig(tp=world.size), world, model.config, torch.device("cpu"))
    divide(model, mesh, again=again)
    found: dict[int, Tensor] = {}

    def keep(x: Tensor | None) -> Tensor | None:
        if x is not None:
            found[x.untyped_storage()._cdata] = x
        return x

    def seen(pack: Any, unpack: Any) -> saved_tensors_hooks:
        return saved_tensors_hooks(lambda x: keep(pack(x)), unpack)

    tokens = torch.arange(LENGTH)
    with patch.object(rows, "saved_tensors_hooks", seen), saved_tensors_hooks(keep, lambda x: x):
        hidden = model.trunk(tokens, tokens, Packed([0, LENGTH]))
    assert hidden.requires_grad
    return sum(x.untyped_storage().nbytes() for x in found.values())


def passed(checkpointing: str) -> tuple[int, int, list[float]]:
    """Of one row, forward and backward in bf16: bytes sent, numbers in the largest tensor, log-probabilities."""
    model = tiny_model(**LLAMA).to(torch.bfloat16)
    world = read_world()
    mesh = join(LayoutConfig(tp=world.size), world, model.config, torch.device("cpu"))
    learner = Learner(model, OptimConfig(checkpointing=checkpointing), mesh)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCAB, (LENGTH + 1,), generator=draw).tolist()
    batch = pack([Document(tokens, [1.0] * len(tokens))], LENGTH)
    with Wire(mesh.tp) as wire, Largest() as largest:
        learner.forward_backward(batch, cross_entropy)
    return wire.total, largest.numbers, learner.logprobs(batch)[0].tolist()


class Largest(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **kwargs or {})
        for each in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.numel())
        return made
