"""Token masks for the rows of a step that have a grammar, computed while the model computes the step.

All rows are computed in one call: between two calls the thread would have to wait for the GIL, which the thread that
prepares the step holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo.engine.schedule.request import Request
from rondo.engine.structured.matcher import GrammarMatcher, follow_all
from rondo.ops.vocabulary.draw import WORD

if TYPE_CHECKING:
    from llguidance import LLExecutor

Bits = NDArray[np.int32]
Ints = NDArray[np.int64]
Asked = tuple[int, Request, GrammarMatcher]
"""The first row of a request with a grammar; the rows of its draft tokens follow."""


@dataclass(frozen=True, slots=True)
class Masks:
    """Masks of a step. `bits` has one row per row of the step, one bit per token; rows without a grammar have all bits
    set."""

    bits: Future[Bits]

    def on(self, device: torch.device) -> Tensor:
        """Mask tensor [R, words] in int32."""
        return torch.from_numpy(self.bits.result()).to(device, non_blocking=True)


class Masker:
    """Computes masks in a background thread; llguidance computes the independent rows of a step in parallel."""

    def __init__(self, vocab: int) -> None:
        self._words = -(-vocab // WORD)
        self._thread: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None

    def start(self, requests: Sequence[Request], obey: Sequence[int] | Ints) -> Masks | None:
        """Starts computing the masks of the rows marked in `obey`, as far as their requests have a matcher; None if
        there are none."""
        asked = [
            (row, requests[row], matcher)
            for row in np.flatnonzero(obey).tolist()
            if (matcher := requests[row].matcher) is not None
            and (row == 0 or requests[row - 1] is not requests[row])
        ]
        if not asked:
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "rondo-masks")
        return Masks(self._thread.submit(self._find, asked, len(requests)))

    def _find(self, asked: Sequence[Asked], rows: int) -> Bits:
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor()
        bits = np.full((rows, self._words), -1, dtype=np.int32)
        follow_all(asked, self._executor)
        going = [each for each in asked if not each[2].over]
        self._fill(bits, going, self._executor)
        for row, _, matcher in asked:
            if matcher.over:
                bits[row] = _only(matcher.ends, self._words)
            elif matcher.failure:
                bits[row] = 0
        return bits

    def _fill(self, bits: Bits, going: Sequence[Asked], executor: LLExecutor) -> None:
        place = bits.ctypes.data, bits.shape[1] * bits.itemsize, len(bits)
        plain = [(matcher.state, row) for row, request, matcher in going if not request.proposed]
        if plain:
            executor.unsafe_compute_mask_ptr(plain, *place)
        if len(plain) < len(going):
            guessed = [(matcher.state, row, r.proposed) for row, r, matcher in going if r.proposed]
            executor.unsafe_compute_mask_ptr_with_draft_token(guessed, *place)


def _only(tokens: Iterable[int], words: int) -> Bits:
    bits = np.zeros(words, dtype=np.uint32)
    for token in tokens:
        bits[token // WORD] |= np.uint32(1 << token % WORD)
    return bits.view(np.int32)
