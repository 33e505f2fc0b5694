"""Assignment of every wanted byte to its nearest owner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rondo.base.errors import ConfigError
from rondo.weights.plan.boxes import Box, intersect, subtract, volume, whole

Part = tuple[str, Box]
"""A tensor's name and a region of it."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes of one region of a tensor, from an owner to a receiver, by their numbers."""

    name: str
    box: Box
    owner: int
    receiver: int
    nbytes: int


def make_plan(
    wanted: Sequence[Iterable[Part]],
    owned: Sequence[Iterable[Part]],
    itemsize: Callable[[str], int],
    distance: Callable[[int, int], int] = lambda owner, receiver: 0,
) -> list[Transfer]:
    """Covers the wanted parts of each receiver. Among owners of the same bytes the nearest one sends them, and among
    equally near owners the one with the fewest bytes so far."""
    by_name: dict[str, list[tuple[int, Box]]] = {}
    for owner, parts in enumerate(owned):
        for name, box in parts:
            by_name.setdefault(name, []).append((owner, box))
    load = [0] * len(owned)
    found: list[Transfer] = []
    for receiver, parts in enumerate(wanted):
        for name, box in parts:
            rest = [box]
            found_at = [each for each in by_name.get(name, ()) if _may_overlap(each[1], box)]
            near = sorted(found_at, key=lambda each: (distance(each[0], receiver), load[each[0]], each[0]))
            for owner, region in near:
                left: list[Box] = []
                for piece in rest:
                    common = intersect(piece, region)
                    if common is None:
                        left.append(piece)
                        continue
                    nbytes = volume(common) * itemsize(name)
                    found.append(Transfer(name, common, owner, receiver, nbytes))
                    load[owner] += nbytes
                    left += subtract(piece, common)
                rest = left
                if not rest:
                    break
            if rest and volume(rest[0]):
                raise ConfigError(
                    f"no owner registered {name}{list(rest[0])}: register every shard of the model."
                )
    return found


def _may_overlap(one: Box, other: Box) -> bool:
    """Compares the rows only, which tells most parts of a split tensor apart."""
    return not one or (one[0][0] < other[0][1] and other[0][0] < one[0][1])


def share_out(shapes: Mapping[str, tuple[int, ...]], owned: Sequence[Iterable[Part]]) -> list[list[Part]]:
    """For each owner, the parts that it writes, so that every byte of every tensor is written once."""
    plan = make_plan([[(name, whole(shape)) for name, shape in shapes.items()]], owned, lambda name: 1)
    parts: list[list[Part]] = [[] for _ in owned]
    for each in plan:
        parts[each.owner].append((each.name, each.box))
    return parts
