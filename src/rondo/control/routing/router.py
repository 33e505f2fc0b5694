"""Routing of a request to the engine with the least pending work.

Pending work is measured in bytes of prompt: the part of a prompt outside the engine's cache, and each byte of the
answer times a factor, because decoding costs more than prefill. So an engine with a cached prefix is preferred until
its queue costs more than computing the prefix elsewhere. An engine's own report adds the requests of other gateways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from rondo.base.errors import NotFound, NotReady
from rondo.client.pool import LeastLoaded, PooledEngine
from rondo.client.protocol.prefix import hashes
from rondo.control.config import RouterConfig
from rondo.control.routing.prefixes import PrefixIndex

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
    capacity: int | None = None
    """Requests that it answers at once, by its own report or by the settings; None: no limit is known."""
    failures: int = 0
    """In a row."""
    open_until: float = 0.0
    """After too many failures the circuit is open until then; then one request decides."""
    bit: int = field(default=0, repr=False)

    @property
    def full(self) -> bool:
        return self.capacity is not None and self.requests + self.reported >= self.capacity


@dataclass(eq=False)
class Route:
    """A routed request. `Router.computed` and `Router.ended` receive its progress."""

    instance: Instance
    prefill: float
    """Outstanding work of its prompt."""
    decode: float
    known: int
    """Bytes of the prompt that the instance is assumed to have in its cache."""
    pieces: Sequence[int] = ()


class Router:
    def __init__(
        self, instances: Iterable[Instance], config: RouterConfig, now: Callable[[], float] = monotonic
    ) -> None:
        self.config, self._now = config, now
        self.instances: list[Instance] = []
        self.prefixes = PrefixIndex(config.pieces)
        self._balance = LeastLoaded()
        self._mean_work = 0.0
        self._computing: dict[tuple[int, int], list[Route]] = {}
        """Requests whose prompt is being computed, by engine and the hash of the whole prompt."""
        for instance in instances:
            self.add(instance)

    def add(self, instance: Instance) -> None:
        instance.bit = self.prefixes.new_engine()
        self.instances.append(instance)

    def remove(self, instance: Instance) -> None:
        self.instances.remove(instance)
        self.prefixes.remove(instance.bit)

    def choose(
        self,
        model: str,
        prompt: bytes,
        answer: int = 0,
        without: Sequence[str] = (),
        pieces: Sequence[int] | None = None,
    ) -> Route:
        """`answer`: about how many bytes it may have. `without`: URLs tried already. `pieces`: hashes of the
        prompt's prefixes, if they have been computed."""
        ready = [each for each in self._ready(model) if each.url not in without]
        if not ready:
            raise NotReady(
                f"No engine that serves {model!r} is ready: try again in a few seconds.",
                code="no_engine_ready",
            )
        if len(free := [each for each in ready if not each.full]):
            ready = free
        config, mean = self.config, self._mean_work
        if pieces is None:
            pieces = hashes(model.encode(), prompt, config.piece, config.longest)
        lengths = self.prefixes.lengths(pieces, sum([each.bit for each in ready])) if pieces else {}
        known = {bit: min(length * config.piece, len(prompt)) for bit, length in lengths.items()}.get
        chosen = ready[0]
        if len(ready) > 1:
            chosen = self._balance.choose(ready, lambda each: known(each.bit, 0) - each.reported * mean)
        saved = known(chosen.bit, 0)
        route = Route(chosen, len(prompt) - saved, max(1.0, config.decode_factor * answer), saved, pieces)
        self._send(route)
        return route

    def has_room(self, model: str) -> bool:
        """Whether an engine of the model can begin a request at once."""
        return any(model in each.models and not each.full and self.takes(each) for each in self.instances)

    def serves(self, model: str) -> bool:
        """Whether an engine of the model takes requests, if only into its queue."""
        return any(model in each.models and self.takes(each) for each in self.instances)

    def computed(self, route: Route) -> None:
        """The prompt has been computed: the first byte of the response has arrived, or the engine reported it."""
        route.instance.work -= route.prefill
        route.prefill = 0.0

    def report(self, instance: Instance, stored: Sequence[int], dropped: Sequence[int], whole: bool) -> None:
        """Prefixes that the engine stored and dropped; `whole`: `stored` is all that it has."""
        self.prefixes.report(instance.bit, stored, dropped, whole)
        for piece in stored if self._computing else ():
            for route in self._computing.pop((instance.bit, piece), ()):
                self.computed(route)

    def ended(self, route: Route, well: bool | None) -> None:
        """`well`: the engine answered, also with a refusal. False: it was unreachable, or broke off. None: the request
        was withdrawn before an answer, without evidence about the engine."""
        instance = route.instance
        self._balance.end(instance, route.prefill + route.decode)
        self._note_end(route)
        if instance in self.instances:  # it may have been removed while it answered
            self.prefixes.end(route.pieces, instance.bit)
        if well is None:
            return
        if well:
            instance.failures, instance.open_until = 0, 0.0
            return
        instance.failures += 1
        self.forget(instance)
        if instance.failures >= self.config.failures:
            instance.open_until = self._now() + self.config.shut

    def forget(self, instance: Instance) -> None:
        """The engine may have restarted, and then its cache is empty."""
        if instance in self.instances:
            self.prefixes.clear(instance.bit)

    def named(self, model: str) -> list[Instance]:
        """All engines of the model; raises `NotFound`."""
        named = [each for each in self.instances if model in each.models]
        if not named:
            raise NotFound(
                f"The model {model!r} does not exist: GET /v1/models lists the models.",
                param="model",
                code="model_not_found",
            )
        return named

    def _ready(self, model: str) -> list[Instance]:
        return [
            each
            for each in self.named(model)
            if each.healthy and not each.draining and (not each.failures or self.takes(each))
        ]

    def takes(self, instance: Instance) -> bool:
        """Whether the engine may be sent a request: it is healthy, not draining, and its circuit is closed."""
        if not instance.healthy or instance.draining:
            return False
        if instance.failures < self.config.failures:
            return True
        return self._now() >= instance.open_until and not instance.requests

    def _send(self, route: Route) -> None:
        work = route.prefill + route.decode
        self._balance.begin(route.instance, work)
        self._mean_work += MEAN_SHARE * (work - self._mean_work)
        self.prefixes.add(route.pieces, route.instance.bit)
        if route.prefill and route.pieces and self.prefixes.exact(route.instance.bit):
            self._computing.setdefault((route.instance.bit, route.pieces[-1]), []).append(route)

    def _note_end(self, route: Route) -> None:
        if not route.pieces:
            return
        key = route.instance.bit, route.pieces[-1]
        computing = self._computing.get(key, [])
        if route in computing:
            computing.remove(route)
            if not computing:
                del self._computing[key]
