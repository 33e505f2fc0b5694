"""Proposals without a model: what followed the last time the request's text went like this."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rondo.engine.schedule.request import Request

CANDIDATES = 8
"""Earlier places that are compared; the most recent ones."""


class NgramIndex:
    """Where each run of `shortest` tokens ended, most recent first: a dictionary and, by place, the one before."""

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest = shortest
        self.longest = longest
        self._last: dict[tuple[int, ...], int] = {}
        self._before = array("q", [0] * shortest)

    def continuation(self, tokens: Sequence[int], count: int) -> list[int]:
        """What followed the longest run, of at most `longest` tokens, that `tokens` ends with; the most recent one of
        several. Where it reaches the end it goes on in itself: a period repeats as often as it takes."""
        self._extend(tokens)
        start = self._find(tokens)
        if not start:
            return []
        found = list(tokens[start : start + count])
        while len(found) < count:
            found.append(found[len(found) - (len(tokens) - start)])
        return found

    def _extend(self, tokens: Sequence[int]) -> None:
        """Every place but the last, which is the one to be looked up."""
        for end in range(len(self._before), len(tokens)):
            run = tuple(tokens[end - self.shortest : end])
            self._before.append(self._last.get(run, 0))
            self._last[run] = end

    def _find(self, tokens: Sequence[int]) -> int:
        end = len(tokens)
        place = self._last.get(tuple(tokens[end - self.shortest :]), 0) if end > self.shortest else 0
        best, length = 0, 0
        for _ in range(CANDIDATES):
            if not place:
                break
            alike = self._alike(tokens, place)
            if alike > length:
                best, length = place, alike
            if length == self.longest:
                break
            place = self._before[place]
        return best

    def _alike(self, tokens: Sequence[int], place: int) -> int:
        count = self.shortest
        while count < min(self.longest, place) and tokens[place - 1 - count] == tokens[-1 - count]:
            count += 1
        return count


class NgramProposer:
    """An index for each running request, kept by its row and brought up to date when it is asked."""

    def __init__(self, rows: int, shortest: int, longest: int) -> None:
        self.shortest = shortest
        self.longest = longest
        self._indexes: list[tuple[Request, NgramIndex] | None] = [None] * rows

    def propose(self, requests: Sequence[Request]) -> None:
        for request in requests:
            request.proposed = self._index(request).continuation(request.tokens, request.ahead)

    def sleep(self, level: int) -> None:
        """It holds nothing that is worth giving back."""

    def wake(self, tags: Sequence[str] | None) -> None:
        pass

    def _index(self, request: Request) -> NgramIndex:
        held = self._indexes[request.row]
        if held is None or held[0] is not request:
            held = self._indexes[request.row] = (request, NgramIndex(self.shortest, self.longest))
        return held[1]
