"""N-gram proposals without a model: the continuation of the last occurrence of the request's final n-gram."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rondo.engine.schedule.request import Request

CANDIDATES = 8
"""Maximum number of earlier occurrences to compare, the most recent first."""


class NgramIndex:
    """Ends of all n-grams of `shortest` tokens, as linked lists: a dictionary has the most recent end, and an array the
    end before each."""

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest = shortest
        self.longest = longest
        self._last: dict[tuple[int, ...], int] = {}
        self._before = array("q", [0] * shortest)

    def continuation(self, tokens: Sequence[int], count: int) -> list[int]:
        """Continuation of the longest earlier occurrence, of at most `longest` tokens, of the end of `tokens`; the most
        recent one of several. At the end of the text it continues with itself, so that a period repeats."""
        self._extend(tokens)
        start = self._find(tokens)
        if not start:
            return []
        found = list(tokens[start : start + count])
        while len(found) < count:
            found.append(found[len(found) - (len(tokens) - start)])
        return found

    def _extend(self, tokens: Sequence[int]) -> None:
        """Indexes every position except the last, which is the one to look up."""
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
    """One index per running request, stored by row and updated on use."""

    def __init__(self, rows: int, shortest: int, longest: int) -> None:
        self.shortest = shortest
        self.longest = longest
        self._indexes: list[tuple[Request, NgramIndex] | None] = [None] * rows

    def propose(self, requests: Sequence[Request]) -> None:
        for request in requests:
            request.proposed = self._index(request).continuation(request.tokens, request.ahead)

    def sleep(self, level: int) -> None:
        """An index uses too little memory to be released."""

    def wake(self, tags: Sequence[str] | None) -> None:
        pass

    def _index(self, request: Request) -> NgramIndex:
        held = self._indexes[request.row]
        if held is None or held[0] is not request:
            held = self._indexes[request.row] = (request, NgramIndex(self.shortest, self.longest))
        return held[1]
