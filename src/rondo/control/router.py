"""Routing of a request to the engine with the least pending work.

Pending work is measured in bytes of prompt: the part of a prompt outside the engine's cache, and each byte of the
answer times a factor, because decoding costs more than prefill. So an engine with a cached prefix is preferred until
its queue costs more than computing the prefix elsewhere. An engine's own report adds the requests of other gateways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from rondo.base.errors import NotFound, Unavailable
from rondo.client.pool import LeastLoaded, PooledEngine
from rondo.control.config import RouterConfig
from rondo.control.prefixes import PrefixIndex, hashes

MEAN_SHARE = 0.05
"""Weight of the latest request in the mean work of a request."""


@dataclass(eq=False)
class Instance(PooledEngine):
    """An engine of this gateway. `work` and `requests` are those of this gateway's unanswered requests."""

    models: frozenset[str] = frozenset()
    """Served names, loaded adapters included."""
    draining: bool = False
    reported: int = 0
    """Requests that the engine reported beyond this gateway's, at its latest report."""
    failures: int = 0
    """In a row."""
    open_until: float = 0.0
    """After too many failures the circuit is open until then; then one request decides."""
    bit: int = field(default=0, repr=False)


@dataclass(frozen=True)
class Route:
    """A routed request, whose outcome is reported to `Router.ended`."""

    instance: Instance
    work: float
    known: int
    """Bytes of the prompt that the instance had been sent before."""


class Router:
    def __init__(
        self, instances: Iterable[Instance], config: RouterConfig, now: Callable[[], float] = monotonic
    ) -> None:
        self.config, self._now = config, now
        self.instances: list[Instance] = []
        self.prefixes = PrefixIndex(config.pieces)
        self._balance = LeastLoaded()
        self._mean_work = 0.0
        for instance in instances:
            self.add(instance)

    def add(self, instance: Instance) -> None:
        instance.bit = self.prefixes.new_engine()
        self.instances.append(instance)

    def remove(self, instance: Instance) -> None:
        self.instances.remove(instance)
        self.prefixes.remove(instance.bit)

    def choose(self, model: str, prompt: bytes, answer: int = 0, without: Sequence[str] = ()) -> Route:
        """`answer`: about how many bytes it may have. `without`: URLs that were tried already."""
        ready = [each for each in self._named(model) if self._takes(each) and each.url not in without]
        if not ready:
            raise Unavailable(
                f"No engine that serves {model!r} is ready: try again in a few seconds.",
                code="no_engine_ready",
            )
        config = self.config
        pieces = hashes(model, prompt, config.piece, config.longest)
        lengths = self.prefixes.lengths(pieces, sum(each.bit for each in ready))
        known = {each.bit: min(lengths.get(each.bit, 0) * config.piece, len(prompt)) for each in ready}
        chosen = self._balance.choose(ready, lambda each: known[each.bit] - self._reported(each))
        work = len(prompt) - known[chosen.bit] + config.decode_factor * answer
        return self._send(chosen, pieces, known[chosen.bit], max(1.0, work))

    def ended(self, route: Route, well: bool) -> None:
        """`well`: the engine answered, also with a refusal. Otherwise it was unreachable, or broke off."""
        instance = route.instance
        self._balance.end(instance, route.work)
        if well:
            instance.failures, instance.open_until = 0, 0.0
            return
        instance.failures += 1
        self.forget(instance)
        if instance.failures >= self.config.failures:
            instance.open_until = self._now() + self.config.shut

    def forget(self, instance: Instance) -> None:
        """The engine may have restarted, and then its cache is empty."""
        if instance in self.instances:  # it may have been removed while it answered
            self.prefixes.clear(instance.bit)

    def _named(self, model: str) -> list[Instance]:
        named = [each for each in self.instances if model in each.models]
        if not named:
            raise NotFound(
                f"The model {model!r} does not exist: GET /v1/models lists the models.",
                param="model",
                code="model_not_found",
            )
        return named

    def _reported(self, instance: Instance) -> float:
        """Estimated work of the requests of other gateways."""
        return instance.reported * self._mean_work

    def _takes(self, instance: Instance) -> bool:
        if not instance.healthy or instance.draining:
            return False
        if instance.failures < self.config.failures:
            return True
        return self._now() >= instance.open_until and not instance.requests

    def _send(self, instance: Instance, pieces: Sequence[int], known: int, work: float) -> Route:
        self._balance.begin(instance, work)
        self._mean_work += MEAN_SHARE * (work - self._mean_work)
        self.prefixes.add(pieces, instance.bit)
        return Route(instance, work, known)
