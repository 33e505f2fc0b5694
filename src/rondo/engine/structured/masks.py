"""Which tokens may come next, for the rows of a step that have a grammar: found while the model computes the step."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo.engine.request import Request

if TYPE_CHECKING:
    from llguidance import LLExecutor

Bits = NDArray[np.int32]
WORD = 32


@dataclass(frozen=True, slots=True)
class Masks:
    """`bits` come as one row for each of `rows`, a bit a token."""

    rows: list[int]
    bits: Future[Bits]

    def apply(self, logits: Tensor) -> None:
        """In place: what may not come next has no chance."""
        forbidden = unpack(~self.bits.result(), logits.shape[-1], logits.device)
        if len(self.rows) == len(logits):
            logits.masked_fill_(forbidden, -torch.inf)
            return
        for row, tokens in zip(self.rows, forbidden, strict=True):
            logits[row].masked_fill_(tokens, -torch.inf)


def unpack(bits: Bits, vocab: int, device: torch.device) -> Tensor:
    """[R, words] -> bools [R, V]; they go to the device as bits."""
    if device.type == "cpu":
        return torch.from_numpy(
            np.unpackbits(bits.view(np.uint8), axis=1, count=vocab, bitorder="little").view(np.bool_)
        )
    packed = torch.from_numpy(bits).to(device, non_blocking=True)
    places = torch.arange(WORD, dtype=torch.int32, device=device)
    return ((packed[:, :, None] >> places) & 1).bool().flatten(1)[:, :vocab]


class Masker:
    """One thread asks, and several look: a step's masks do not hang on each other."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None

    def start(self, requests: Sequence[Request], rows: list[int], vocab: int) -> Masks:
        """`rows` of the step are of requests with a matcher; the rows of one follow each other, and those after its
        first come each after one more of its proposals."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "rondo-masks")
        asked = [requests[row] for row in rows]
        return Masks(rows, self._thread.submit(self._find, asked, vocab))

    def _find(self, requests: Sequence[Request], vocab: int) -> Bits:
        bits = np.full((len(requests), -(-vocab // WORD)), -1, dtype=np.int32)
        open_at: list[tuple[int, Request]] = []
        for i, request in enumerate(requests):
            matcher = request.matcher
            if matcher is None or (i > 0 and requests[i - 1] is request):
                continue
            matcher.follow(request.tokens, request.prompt_length)
            if matcher.over:
                bits[i] = 0
                for token in matcher.ends:
                    bits[i].view(np.uint32)[token // WORD] |= np.uint32(1 << token % WORD)
            else:
                open_at.append((i, request))
        self._fill(bits, open_at)
        for i, request in open_at:
            if request.matcher is not None and request.matcher.failure:
                bits[i] = 0
        return bits

    def _fill(self, bits: Bits, open_at: list[tuple[int, Request]]) -> None:
        if not open_at:
            return
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor()
        place = bits.ctypes.data, bits.shape[1] * 4, len(bits)
        plain = [(r.matcher.state, i) for i, r in open_at if r.matcher is not None and not r.proposed]
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, *place)
        guessed = [
            (r.matcher.state, i, r.proposed) for i, r in open_at if r.matcher is not None and r.proposed
        ]
        if guessed:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(guessed, *place)
