"""Adaptive speculative decoding: whether to speculate in the next step. No clock: step times are passed in.

For each number of decoding requests there is a time account. Every step pays in a small share of its time; a
speculating step adds its gain, or subtracts its loss, relative to plain steps. The engine speculates while the balance
is positive. When it is overdrawn, speculation stops until the shares of later steps have paid for another try.
Speculation therefore never costs more than the share, for any model, text and machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import log2

SHARE, LEAST_SHARE = 0.02, 0.005
"""Share of all time that speculation may lose; halved with each failed try."""
WINDOW = 8
"""Number of steps in the running median of step times."""
TRY = 4
"""Number of lossy steps that the balance must cover before another try begins."""
FIRST_LOSS = 0.1
"""Assumed loss of a step, in steps, before it is measured."""
MOST = 4
"""Maximum balance in steps: old gains must not pay for current losses."""
REFRESH = 256
"""Number of speculating steps after which plain steps are measured again."""
OUTLIER = 3
"""Steps slower than this multiple of the median are treated as disturbed."""


class Controller:
    def __init__(self) -> None:
        self._accounts: dict[int, DraftStatistics] = {}

    def allows(self, load: int) -> bool:
        """Whether the next step, with `load` decoding requests, may speculate."""
        return self._account(load).open

    def observe(self, load: int, seconds: float, accepted: int, speculated: bool) -> None:
        """Records a step of `load` decodes and nothing else, which took `seconds` and produced `load + accepted`
        tokens."""
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
        """`tokens` is the output of the step, in units of a plain step's output."""
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
        """Adds `gain`, in steps, to the balance."""
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
    """The upper median; faster than the statistics library, since every step uses it."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _bucket(load: int) -> int:
    """Buckets of loads with similar step times: one by one up to 8, then within a tenth."""
    return load if load < 8 else round(8 * log2(load))
