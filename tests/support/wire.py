"""Bytes that a rank sends, counted where torch's collectives are dispatched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode


class Wire(TorchDispatchMode):
    """`sent` is by collective, and counts as the published formulas do: of what goes to other ranks alone, a sum over
    n ranks being scattered and then gathered."""

    def __init__(self, group: ProcessGroup) -> None:
        super().__init__()
        self._rank, self._size = group.rank(), group.size()
        self.sent: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.sent.total()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func._schema.name.partition("::")[2]
        count = self._counts().get(name)
        if count is not None:
            self.sent[name] += count(*args)
        return func(*args, **kwargs or {})

    def _counts(self) -> dict[str, Callable[..., int]]:
        others = self._size - 1
        return {
            "all_gather_into_tensor": lambda x, *_: others * x.nbytes,
            "reduce_scatter_tensor": lambda x, *_: others * x.nbytes // self._size,
            "all_reduce": lambda x, *_: 2 * others * x.nbytes // self._size,
            # A pipeline's schedule says a word to its neighbours first.
            "send": lambda tensors, *_: sum(x.nbytes for x in tensors if x.ndim > 1),
            "all_to_all_single": lambda x, _, splits, *__: self._away(x, splits),
        }

    def _away(self, x: Tensor, splits: Sequence[int]) -> int:
        return (x.shape[0] - splits[self._rank]) * (x.nbytes // max(1, x.shape[0]))
