"""Whether to speculate in the next step. No clock: it is told how long steps took, and keeps an account.

For each number of decoding requests there is an account of time. Every step pays a small share of its time into it;
a step that speculated pays in what it gained, or draws what it lost, against the steps that did not. While there is
something in the account the engine speculates. When it is overdrawn it stops, until the shares of later steps have paid
for another try. So speculation never costs more than the share, whatever the model, the text and the machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import log2

SHARE, LEAST_SHARE = 0.02, 0.005
"""Of all time, what speculation may lose; halved with each try that failed."""
WINDOW = 8
"""Steps whose median is what a step takes."""
TRY = 4
"""Steps that must be paid for before another try begins."""
FIRST_LOSS = 0.1
"""What a step is thought to lose, in steps, before that is known."""
MOST = 4
"""Steps that the account holds at most: what was gained long ago must not pay for losing today."""
REFRESH = 256
"""Speculating steps after which some without it are measured again."""
OUTLIER = 3
"""A step that took more than so many times the usual was held up by something else."""


class Controller:
    def __init__(self) -> None:
        self._accounts: dict[int, DraftStatistics] = {}

    def allows(self, load: int) -> bool:
        """Whether the next step, with `load` decoding requests, may speculate."""
        return self._account(load).open

    def observe(self, load: int, seconds: float, accepted: int, speculated: bool) -> None:
        """A step of `load` decoding requests and nothing else took `seconds` and gave `load + accepted` tokens."""
        self._account(load).observe(seconds, 1 + accepted / load, speculated)

    def _account(self, load: int) -> DraftStatistics:
        return self._accounts.setdefault(_bucket(load), DraftStatistics())


class DraftStatistics:
    def __init__(self) -> None:
        self.trying = False
        self.balance = 0.0
        self._share = SHARE
        self._plain: deque[float] = deque(maxlen=WINDOW)
        self._speculated: deque[float] = deque(maxlen=WINDOW)
        self._unmeasured = WINDOW
        self._loss = FIRST_LOSS
        self._steps = 0

    @property
    def open(self) -> bool:
        return self.trying and not self._unmeasured

    def observe(self, seconds: float, tokens: float, speculated: bool) -> None:
        """`tokens` is what the step gave, in those of a step without speculation."""
        if speculated:
            self._speculated.append(seconds)
            seconds = min(seconds, OUTLIER * _middle(self._speculated))
        else:
            self._plain.append(seconds)
            self._unmeasured = max(self._unmeasured - 1, 0)
        if not self._plain:
            return
        usual = _middle(self._plain)
        self.balance = min(self.balance + self._share * seconds, MOST * usual)
        if speculated:
            self._settle(tokens - seconds / usual, usual)
        elif not self.trying:
            self.trying = self.balance >= TRY * max(self._loss, FIRST_LOSS) * usual

    def _settle(self, gain: float, usual: float) -> None:
        """`gain` in steps."""
        self.balance = min(self.balance + gain * usual, MOST * usual)
        self._loss += (max(-gain, 0.0) - self._loss) / TRY
        self._steps += 1
        if self._steps % REFRESH == 0:
            self._unmeasured = WINDOW // 2
        if self.balance < 0:
            self.trying = False
            self._share = max(self._share / 2, LEAST_SHARE)
        elif self.balance == MOST * usual:
            self._share = SHARE


def _middle(values: Iterable[float]) -> float:
    """The median, or what is just above it: every step asks, so it is not the library's."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _bucket(load: int) -> int:
    """Loads whose steps take about as long: one by one up to 8, then within a tenth."""
    return load if load < 8 else round(8 * log2(load))
