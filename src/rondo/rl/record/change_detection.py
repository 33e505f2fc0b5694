"""How high a metric was over windows of steps, and whether it has changed since: medians, which one odd step leaves
where they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

OF_NORMAL = 1.4826
"""What the median distance from the median times this is: the deviation, where numbers are normal."""
OF_MEDIAN = math.sqrt(math.pi / 2)
"""The standard error of a median, in those of a mean."""


@dataclass(frozen=True)
class Change:
    level: float
    """What it was."""
    size: float
    since: int
    """The first step of the windows that are nearer to what it is now than to what it was."""
    begin: int
    """The first step of the window that had this level."""


@dataclass(frozen=True)
class Levels:
    medians: Floats
    """Of windows that follow one another; the last one is that of now."""
    begins: Sequence[int]
    """The first step of each."""
    least: float
    """A smaller difference of two medians may be chance."""

    @property
    def now(self) -> float:
        return float(self.medians[-1])

    @property
    def first(self) -> int:
        return self.begins[0]

    @property
    def highest(self) -> Change:
        """Of the windows before, against now."""
        return self._from(int(np.argmax(self.medians[:-1])))

    @property
    def lowest(self) -> Change:
        return self._from(int(np.argmin(self.medians[:-1])))

    def rises(self, by: float, since: int = 0) -> Change | None:
        """If it is above its lowest by so much, and surely; of the windows from step `since` on."""
        own = [i for i, begin in enumerate(self.begins[:-1]) if begin >= since]
        if not own:
            return None
        change = self._from(min(own, key=lambda i: self.medians[i]))
        return change if self._counts(self.now - change.level, by) else None

    def falls(self, by: float, since: int = 0) -> Change | None:
        own = [i for i, begin in enumerate(self.begins[:-1]) if begin >= since]
        if not own:
            return None
        change = self._from(max(own, key=lambda i: self.medians[i]))
        return change if self._counts(change.level - self.now, by) else None

    def _counts(self, difference: float, by: float) -> bool:
        return difference > 0 and difference >= by and difference > self.least

    def _from(self, index: int) -> Change:
        level = float(self.medians[index])
        middle = (level + self.now) / 2
        later = range(index, len(self.medians) - 1)
        before = [i for i in later if abs(self.medians[i] - level) <= abs(middle - level)]
        since = self.begins[max(before, default=index) + 1]
        return Change(level, abs(level - self.now), since, self.begins[index])


def levels(rows: Sequence[Mapping[str, float]], name: str, window: int, certainty: float) -> Levels | None:
    """Windows are counted back from the last step; there must be two that are whole. None too where a window has the
    metric in less than half of its steps."""
    count = len(rows) // window
    if count < 2:
        return None
    kept = rows[len(rows) - count * window :]
    values = np.array([row.get(name, math.nan) for row in kept], np.float64).reshape(count, window)
    values[~np.isfinite(values)] = math.nan
    known = 2 * np.isfinite(values).sum(1) >= window
    if not known[-1] or known.sum() < 2:
        return None
    values = values[known]
    begins = [int(row["step"]) for row, own in zip(kept[::window], known, strict=True) if own]
    medians = _medians(values)
    scatter = OF_NORMAL * float(_medians(np.abs(values - medians[:, None]).reshape(1, -1))[0])
    error = OF_MEDIAN * scatter / math.sqrt(window)
    return Levels(medians, begins, certainty * math.sqrt(2) * error)


def _medians(values: Floats) -> Floats:
    """[R, C] -> [R], of each row's numbers; NaN are sorted to its end. numpy's own takes twenty times as long."""
    ordered = np.sort(values, axis=1)
    count = np.isfinite(values).sum(1)
    rows = np.arange(len(values))
    return np.asarray((ordered[rows, (count - 1) // 2] + ordered[rows, count // 2]) / 2)
