"""Change detection in metrics: medians over windows of steps, which are robust against outliers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

OF_NORMAL = 1.4826
"""Ratio of standard deviation and median absolute deviation of a normal distribution."""
OF_MEDIAN = math.sqrt(math.pi / 2)
"""Ratio of the standard errors of median and mean."""


@dataclass(frozen=True)
class Change:
    level: float
    """The earlier level."""
    size: float
    since: int
    """First step of the windows nearer to the current than to the earlier level."""
    begin: int
    """First step of the window with the earlier level."""


@dataclass(frozen=True)
class Levels:
    medians: Floats
    """Medians of consecutive windows; the last is the current window."""
    begins: Sequence[int]
    """First step of each window."""
    least: float
    """Smallest significant difference of two medians."""

    @property
    def now(self) -> float:
        return float(self.medians[-1])

    @property
    def first(self) -> int:
        return self.begins[0]

    @property
    def highest(self) -> Change:
        """Change from the highest earlier window to the current one."""
        return self._from(int(np.argmax(self.medians[:-1])))

    @property
    def lowest(self) -> Change:
        return self._from(int(np.argmin(self.medians[:-1])))

    def rises(self, by: float, since: int = 0) -> Change | None:
        """The change from the lowest window at or after step `since`, if it is significant and at least `by`."""
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
    """Levels of a metric over windows counted back from the last step. None if there are fewer than two full windows.
    A window with the metric in less than half of its steps is dropped; None if the last is dropped or only one is
    left.
    """
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
    """[R, C] -> [R]: the median of each row without NaN, which sort to the end. numpy's nanmedian takes twenty times
    as long.
    """
    ordered = np.sort(values, axis=1)
    count = np.isfinite(values).sum(1)
    rows = np.arange(len(values))
    return np.asarray((ordered[rows, (count - 1) // 2] + ordered[rows, count // 2]) / 2)
