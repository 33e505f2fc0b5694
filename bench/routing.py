"""Routing of prompts with shared prefixes to four engines: cache hit rate, tokens per second, CPU time of a choice.

20 prefixes of 2,000 tokens, drawn by Zipf's law, each with new tokens at its end. Engines are simulated: the real
scheduler, block cache and cache events, with the time of a step computed from its tokens. An engine's cache has room
for a part of the prefixes. The same load runs with four policies: round robin; least pending work without prefixes; the
history of requests; and the events of the engines' caches.
"""

import heapq
import itertools
import json
import random
import statistics
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from common import Report, arguments, say
from rondo.client.protocol.prefix import PromptPieces, hashes
from rondo.client.types import SamplingParams
from rondo.control.config import RouterConfig
from rondo.control.routing.router import Instance, Route, Router
from rondo.engine.kv.blocks import BlockPool
from rondo.engine.kv.events import CacheEvents
from rondo.engine.kv.groups import GroupedPool
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.scheduler import Scheduler
from rondo.gateway.proxy.fields import read_fields

ENGINES, PREFIXES, PREFIX, SUFFIX, ANSWER = 4, 20, 2000, (50, 150), (16, 96)
CLIENTS, SEQS, STEP_TOKENS, BLOCK = 32, 16, 2048, 16
HELD = 5
"""Prefixes that an engine's cache holds beside its running requests: the four caches hold each prefix once."""
STEP, PREFILL, DECODE = 8e-3, 50e-6, 0.2e-3
"""Seconds of a step, a token of prefill and a token of decode: those of a model of about 8B on one accelerator."""
EVENTS_DELAY = 0.025
POLICIES = ("round robin", "least work", "history", "events")


@dataclass(eq=False)
class Engine:
    number: int
    instance: Instance
    scheduler: Scheduler
    events: CacheEvents
    prompts: dict[str, PromptPieces] = field(default_factory=dict)
    done: dict[str, Callable[[], None]] = field(default_factory=dict)
    routes: dict[str, Route] = field(default_factory=dict)
    busy: bool = False
    place: tuple[str, int] = ("", 0)


class Cluster:
    """Engines, clients that send one request after another, and a policy, in simulated time."""

    def __init__(self, policy: str, seed: int) -> None:
        self.policy, self.rng = policy, random.Random(seed)
        self.now, self._queue, self._count = (
            0.0,
            list[tuple[float, int, Callable[[], None]]](),
            itertools.count(),
        )
        instances = [Instance(f"http://{i}", models=frozenset({"m"})) for i in range(ENGINES)]
        # Without prefixes: no prompt is as long as a piece.
        self.config = RouterConfig(piece=1 << 20) if policy == "least work" else RouterConfig()
        self.router = Router(instances, self.config)
        self.engines = [self._engine(i, instance) for i, instance in enumerate(instances)]
        self.turn = itertools.cycle(self.engines)
        self.weights = [1 / (1 + i) for i in range(PREFIXES)]
        self.prefixes = [[self.rng.randrange(1, 60000) for _ in range(PREFIX)] for _ in range(PREFIXES)]
        self.ids = itertools.count()
        self.tokens = self.cached = self.prompted = self.finished = 0
        self.first: list[float] = []

    def _engine(self, number: int, instance: Instance) -> Engine:
        longest = PREFIX + SUFFIX[1] + ANSWER[1]
        blocks = (HELD * PREFIX + SEQS * (longest - PREFIX) + longest) // BLOCK
        pool = GroupedPool([BlockPool(blocks, BLOCK)])
        scheduler = Scheduler(pool, SEQS, STEP_TOKENS, 10_000, "continuous")
        return Engine(number, instance, scheduler, pool.record_events())

    def run(self, requests: int, warm: int) -> dict[str, float]:
        """The figures of `requests` requests after `warm` others."""
        if self.policy == "events":
            for engine in self.engines:
                self._report(engine)
        for _ in range(CLIENTS):
            self._at(self.rng.random() * 0.1, self._send)
        while self.finished < warm:
            self._next()
        begun, self.tokens, self.cached, self.prompted, self.first = self.now, 0, 0, 0, []
        while self.finished < warm + requests:
            self._next()
        spent = self.now - begun
        return {
            "hit rate": self.cached / self.prompted,
            "tokens/s": self.tokens / spent,
            "TTFT p50, ms": 1e3 * statistics.median(self.first),
        }

    def _at(self, moment: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (moment, next(self._count), action))

    def _next(self) -> None:
        self.now, _, action = heapq.heappop(self._queue)
        action()

    def _send(self) -> None:
        (prefix,) = self.rng.choices(self.prefixes, self.weights)
        prompt = prefix + [self.rng.randrange(1, 60000) for _ in range(self.rng.randint(*SUFFIX))]
        new = self.rng.randint(*ANSWER)
        text = array("I", prompt).tobytes()  # four bytes a token
        pieces = hashes(b"m", text, self.config.piece, self.config.longest)
        route = None
        if self.policy == "round robin":
            engine = next(self.turn)
        else:
            route = self.router.choose("m", text, 4 * ANSWER[1], (), pieces)
            engine = self.engines[int(route.instance.url.removeprefix("http://"))]
        request = Request(
            f"r{next(self.ids)}", 0, prompt, SamplingParams(), len(prompt) + new, next(self._count)
        )
        request.added_at = self.now
        engine.prompts[request.id] = PromptPieces(pieces, self.config.piece, len(text))
        engine.done[request.id] = lambda: self._end(request, route)
        if route is not None:
            engine.routes[request.id] = route
        engine.scheduler.add(request)
        if not engine.busy:
            self._step(engine)

    def _end(self, request: Request, route: Route | None) -> None:
        if route is not None:
            self.router.ended(route, well=True)
        self.finished += 1
        self.prompted += request.prompt_length
        self.cached += request.first_cached
        self.tokens += request.generated
        self._at(self.now, self._send)

    def _step(self, engine: Engine) -> None:
        plan = engine.scheduler.schedule()
        engine.busy = not plan.empty
        if plan.empty:
            return
        prefill = sum(each.planned for each in plan.chunks)
        self._at(
            self.now + STEP + PREFILL * prefill + DECODE * len(plan.decodes),
            lambda: self._finish_step(engine, plan),
        )

    def _finish_step(self, engine: Engine, plan) -> None:
        engine.scheduler.commit(plan)
        moved = [each for each in plan.decodes + plan.chunks if each.remaining == 0]
        for request in moved:
            request.tokens.append(self.rng.randrange(1, 60000))
            prompt = engine.prompts.pop(request.id, None)
            if prompt is not None:
                self.first.append(self.now - request.added_at)
                if (route := engine.routes.pop(request.id, None)) is not None:
                    self.router.computed(route)
                blocks = request.keys[: request.prompt_length // BLOCK]
                engine.events.computed(prompt, request.prompt_length, blocks)
        done = [each for each in moved if len(each.tokens) >= each.max_length]
        engine.scheduler.finish_all(done)
        if self.policy == "events":
            self._at(self.now + EVENTS_DELAY, lambda: self._report(engine))
        self._step(engine)
        for request in done:
            engine.done.pop(request.id)()

    def _report(self, engine: Engine) -> None:
        changes = engine.events.read((self.config.piece, self.config.longest), *engine.place)
        engine.place = (changes.epoch, changes.last)
        if changes.whole or changes.stored or changes.dropped:
            self.router.report(engine.instance, changes.stored, changes.dropped, changes.whole)


def simulate(report: Report, quick: bool) -> None:
    requests, warm, runs = (300, 200, 1) if quick else (2000, 1000, 2)
    means: dict[str, dict[str, float]] = {}
    for policy in POLICIES:
        say(policy)
        found = [Cluster(policy, seed).run(requests, warm) for seed in range(runs)]
        means[policy] = {name: statistics.fmean(each[name] for each in found) for name in found[0]}
    report.ours |= means["events"]
    for policy in POLICIES[:-1]:
        report.peers[policy] = dict(means[policy])
        for name in ("hit rate", "tokens/s"):
            report.ratios[f"{name}, events / {policy}"] = means["events"][name] / means[policy][name]


def cost(report: Report, quick: bool) -> None:
    """CPU time of a choice among 64 engines for a prompt of 128,000 characters, most of which some engine has."""
    config = RouterConfig()
    router = Router([Instance(f"http://{i}", models=frozenset({"m"})) for i in range(64)], config)
    for engine in router.instances:
        router.prefixes.report(engine.bit, [], [], whole=True)
    texts = [(f"{i:07} " * 16_000)[:128_000] for i in range(16)]
    bodies = [
        json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode() for text in texts
    ]
    for engine, body in zip(router.instances, itertools.cycle(bodies), strict=False):
        pieces = read_fields(body, config.piece, config.longest).pieces
        router.prefixes.report(engine.bit, pieces, [], whole=False)
    times: dict[str, list[float]] = {"read": [], "route": []}
    for turn in range(200 if quick else 2000):
        body = bodies[turn % len(bodies)]
        started = time.thread_time()
        fields = read_fields(body, config.piece, 0)
        read = time.thread_time()
        pieces = hashes(b'"m"', fields.prompt, config.piece, config.longest)
        route = router.choose(fields.model, fields.prompt, fields.answer_bytes, (), pieces)
        router.ended(route, well=True)
        times["read"].append(read - started)
        times["route"].append(time.thread_time() - read)
    report.ours["routing, 128k characters, 64 engines, ms"] = 1e3 * statistics.median(times["route"])
    report.limit["routing, 128k characters, 64 engines, ms"] = 0.2
    report.ours["reading that body's fields, ms"] = 1e3 * statistics.median(times["read"])


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    report = Report("routing", limit={"how": "the target"})
    simulate(report, options.quick)
    cost(report, options.quick)
    report.notes.append(
        f"{ENGINES} engines, {PREFIXES} prefixes of {PREFIX:,} tokens, {CLIENTS} clients; a cache holds {HELD} "
        "prefixes beside the running requests"
    )
    report.show(options.json)


if __name__ == "__main__":
    main()
