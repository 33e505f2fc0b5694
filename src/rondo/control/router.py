"""Routing of a request to the engine with the least pending work.

Pending work is the unanswered work of an engine plus the part of this prompt outside its cache. So an engine with a
cached prefix is preferred, until its queue costs more than computing the prefix elsewhere. Caches are estimated from
routed prompts: a prompt is cut into pieces, and the most recent pieces of each engine are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from time import monotonic

from rondo.base.errors import NotFound, Unavailable
from rondo.client.pool import LeastLoaded, PooledEngine
from rondo.control.config import RouterConfig

Pieces = tuple[bytes, ...]
"""Names of a prompt's beginnings, each a piece longer than the one before."""


@dataclass(eq=False)
class Instance(PooledEngine):
    """An engine with its served models and its circuit breaker. The unit of `work` is a character of unanswered
    prompts and of the longest possible answers."""

    models: frozenset[str] = frozenset()
    """Served names, with the loaded adapters."""
    draining: bool = False
    failures: int = 0
    """Number of consecutive failures."""
    shut_until: float = 0.0
    """After too many failures the engine gets no request until this time, and then a single one as a probe."""
    seen: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """Prefix pieces sent to the engine, the most recent last."""


@dataclass(frozen=True)
class Route:
    """A routed request, whose outcome is reported to `Router.ended`."""

    instance: Instance
    work: int
    known: int
    """Characters of the prompt that the instance had been sent before."""


class Router:
    def __init__(
        self, instances: Sequence[Instance], config: RouterConfig, now: Callable[[], float] = monotonic
    ) -> None:
        self.instances, self.config, self._now = list(instances), config, now
        self._balance = LeastLoaded()

    def choose(self, model: str, prompt: str, answer: int = 0, without: Sequence[str] = ()) -> Route:
        """`answer`: how many characters it may have, about. `without`: URLs that have been tried."""
        named = [each for each in self.instances if model in each.models]
        if not named:
            raise NotFound(
                f"The model {model!r} does not exist: GET /v1/models lists those that do.", param="model"
            )
        ready = [each for each in named if self._takes(each) and each.url not in without]
        if not ready:
            raise Unavailable(f"no engine that serves {model!r} is ready: try again in a few seconds")
        pieces = tuple(self._pieces(model, prompt))
        known = {each.url: self._known(each, pieces, len(prompt)) for each in ready}
        chosen = self._balance.choose(ready, lambda each: known[each.url])
        return self._send(chosen, pieces, known[chosen.url], len(prompt) + answer)

    def ended(self, route: Route, well: bool) -> None:
        """`well`: it was answered, be it with a refusal. Not so: it could not be reached, or broke off."""
        instance = route.instance
        self._balance.end(instance, route.work)
        if well:
            instance.failures, instance.shut_until = 0, 0.0
            return
        instance.failures += 1
        instance.seen.clear()  # it may have been started anew
        if instance.failures >= self.config.failures:
            instance.shut_until = self._now() + self.config.shut

    def _takes(self, instance: Instance) -> bool:
        if not instance.healthy or instance.draining:
            return False
        if instance.failures < self.config.failures:
            return True
        return self._now() >= instance.shut_until and not instance.requests

    def _send(self, instance: Instance, pieces: Pieces, known: int, work: int) -> Route:
        route = Route(instance, max(1, work - known), known)
        self._balance.begin(instance, route.work)
        for piece in reversed(pieces):  # so that a beginning is forgotten after what follows it
            instance.seen[piece] = None
            instance.seen.move_to_end(piece)
        while len(instance.seen) > self.config.pieces:
            instance.seen.popitem(last=False)
        return route

    def _known(self, instance: Instance, pieces: Pieces, length: int) -> int:
        """Characters of the longest beginning that it has been sent."""
        for number in range(len(pieces), 0, -1):
            if pieces[number - 1] in instance.seen:
                return min(number * self.config.piece, length)
        return 0

    def _pieces(self, model: str, prompt: str) -> Iterator[bytes]:
        """Whole ones only, at most so many; an adapter's keys and values are its own."""
        state = blake2b(model.encode(), digest_size=12)
        size = self.config.piece
        for start in range(0, min(len(prompt), size * self.config.longest) - size + 1, size):
            state.update(prompt[start : start + size].encode("utf-8", "surrogatepass"))
            yield state.digest()
