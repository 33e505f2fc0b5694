"""The planner beside published training runs: memory of the fullest GPU in GiB, and tokens a second of one GPU.

Nothing is measured here: the columns are arithmetic and other people's figures, and the ratio is ours over theirs. A
row marked with * is one that constants were fitted on; the others are held out. Those missed by more than a tenth
(memory) or a quarter (speed) are named below the table, with the reason as far as it is known.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from common import Report, arguments
from rondo.plan.cost.estimate import Estimate
from support.published_runs import Row, rows

MEMORY, SPEED = 0.10, 0.25
GIB = 2**30


def main() -> None:
    options = arguments(__doc__.splitlines()[0], published="what the source measured")
    report = Report("planner")
    published = report.peers.setdefault("published", {}) if "published" in options.peers else {}
    ratios = report.columns.setdefault("ratio", {})
    missed, misplaced = [], []
    for row in rows():
        plan = Estimate(row.shape, row.cluster, row.layout, row.policy, row.batch)
        if plan.fits != row.fits:
            misplaced.append(row.name)
        for figure, ours, theirs, bound in figures(row, plan):
            report.ours[figure], published[figure], ratios[figure] = ours, theirs, ours / theirs
            if abs(ratios[figure] - 1) > bound:
                missed.append(f"{figure}: {ratios[figure]:.2f}; {row.unmet or 'no reason known'}")
    report.notes += [f"missed: {said}" for said in missed]
    report.notes.append(f"{len(report.ours) - len(missed)} of {len(report.ours)} figures are met")
    fits = f"{len(rows()) - len(misplaced)} of {len(rows())} rows are said to fit, or not to fit, as they did"
    report.notes.append(fits + "".join(f"; not {name}" for name in misplaced))
    report.notes += [f"held out: {said}" for said in held_out(ratios)]
    report.show(options.json)


def figures(row: Row, plan: Estimate) -> Iterator[tuple[str, float, float, float]]:
    """Name, ours, theirs, and how far they may be apart."""
    star = dict.fromkeys(row.fitted, "*")
    if row.memory is not None:
        taken = plan.memory.reserved if row.reserved else plan.memory.total
        yield f"{row.name}: GiB{star.get('memory', '')}", taken / GIB, row.memory, MEMORY
    if row.speed is not None:
        yield f"{row.name}: tokens/s{star.get('speed', '')}", plan.speed, row.speed, SPEED


def held_out(ratios: dict[str, float]) -> Iterator[str]:
    for unit in ("GiB", "tokens/s"):
        off = sorted(abs(ratio - 1) for figure, ratio in ratios.items() if figure.endswith(unit))
        middle, most = off[len(off) // 2], off[int(0.9 * len(off))]
        yield f"{len(off)} figures of {unit}, half of them within {middle:.0%}, nine of ten within {most:.0%}"


if __name__ == "__main__":
    main()
