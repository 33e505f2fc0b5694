"""What `rondo demo` shows while it works: the phases, and the reward as it rises."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rondo.base.telemetry.activity import display

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rondo.demo.pipeline import Event

PHASES = {
    "corpus": "Text, tokenizer, model",
    "pretrain": "Pretraining",
    "sft": "Fine-tuning",
    "rl": "Reinforcement learning",
    "save": "Saving",
}
PLAIN_SECONDS = 5.0
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60
HELD_OUT = "held_out/reward/correct"


@contextlib.contextmanager
def demo_view() -> Iterator[Callable[[Event], None]]:
    if not sys.stderr.isatty():
        yield plain()
        return
    from rich.console import Console
    from rich.live import Live

    view = View()
    with display(None), Live(view.render(), console=Console(stderr=True), refresh_per_second=8) as live:

        def on_event(event: Event) -> None:
            view.add(event)
            live.update(view.render())

        yield on_event


def sparkline(values: list[float], width: int = WIDTH) -> str:
    """Values in [0, 1] as bars; more than `width` of them are averaged."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    return "".join(BARS[min(int(max(mean, 0.0) * len(BARS)), len(BARS) - 1)] for mean in means)


class View:
    def __init__(self) -> None:
        self.latest: dict[str, Event] = {}
        self.begin: dict[str, float] = {}
        self.end: dict[str, float] = {}
        self.rewards: list[float] = []
        self.facts: dict[str, float] = {}
        self.tuned: float | None = None

    def add(self, event: Event) -> None:
        now = time.monotonic()
        self.begin.setdefault(event.phase, now)
        self.end[event.phase] = now
        self.latest[event.phase] = event
        self.facts |= event.metrics
        if event.phase == "sft":
            self.tuned = event.metrics.get("evaluate/reward/correct", self.tuned)
        if event.phase == "rl" and "reward/correct" in event.metrics:
            self.rewards.append(event.metrics["reward/correct"])

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        phases = list(PHASES)
        current = max((phases.index(name) for name in self.latest), default=-1)
        for index, (name, title) in enumerate(PHASES.items()):
            mark = (
                "✓"
                if index < current or (name == "save" and self._done(name))
                else "▸"
                if index == current
                else " "
            )
            event = self.latest.get(name)
            step = f"{event.step}/{event.steps}" if event and name != "corpus" else ""
            seconds = f"{self.end[name] - self.begin[name]:.0f} s" if name in self.end else ""
            table.add_row(mark, title, step, seconds, self._detail(name))
        if not self.rewards:
            return table
        curve = Text.assemble(
            "\nsuccess  ", (sparkline(self.rewards), "green"), f"  {self.rewards[-1]:.0%}\n"
        )
        return Group(table, curve, Text(self._parts(), style="dim"))

    def _done(self, name: str) -> bool:
        event = self.latest.get(name)
        return event is not None and event.step == event.steps

    def _detail(self, name: str) -> str:
        event = self.latest.get(name)
        if event is None or name == "save":
            return ""
        if name == "corpus":
            parameters = event.metrics.get("parameters")
            return f"{parameters / 1e6:.1f} M parameters" if parameters else ""
        loss = f"loss {event.metrics['loss']:.3f}  " if name != "rl" and "loss" in event.metrics else ""
        speed = f"{event.metrics['tokens_per_second']:,.0f} tokens/s" if event.metrics else ""
        rate = f"  success {self.tuned:.0%}" if name == "sft" and self.tuned is not None else ""
        return f"{loss}{speed}{rate}"

    def _parts(self) -> str:
        parts = [f"{k.partition('/')[2]} {v:.2f}" for k, v in self.facts.items() if k.startswith("reward/")]
        held_out = [f"held-out {self.facts[HELD_OUT]:.0%}"] if HELD_OUT in self.facts else []
        difference = self.facts.get("logprob_diff_max", 0.0)
        rewards = "  ".join([*parts, *held_out])
        return f"{rewards}\nlargest difference of learner and sampler: {difference:.1e} nats"


def plain() -> Callable[[Event], None]:
    """A line when a phase begins or ends, when its success was measured, and every few seconds."""
    begin = time.monotonic()
    last = 0.0
    seen: set[str] = set()

    def on_event(event: Event) -> None:
        nonlocal last
        now = time.monotonic()
        if event.phase not in seen:
            seen.add(event.phase)
            print(f"[{now - begin:5.0f} s] {PHASES[event.phase]}", file=sys.stderr, flush=True)
        elif now - last < PLAIN_SECONDS and event.step != event.steps:
            return
        last = now
        shown = ("loss", "reward", "reward/correct", HELD_OUT, "tokens_per_second", "logprob_diff_max")
        facts = "  ".join(f"{name} {event.metrics[name]:.4g}" for name in shown if name in event.metrics)
        if facts:
            print(
                f"[{now - begin:5.0f} s]   step {event.step} of at most {event.steps}  {facts}",
                file=sys.stderr,
                flush=True,
            )

    return on_event
