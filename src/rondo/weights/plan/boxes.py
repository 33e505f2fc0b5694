"""Regions of tensors, and the bytes of a region in a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Box = tuple[tuple[int, int], ...]
"""(start, stop) in each dimension of a tensor."""


@dataclass(frozen=True, slots=True)
class ByteRun:
    """`count` pieces of `length` bytes, the first at `offset`, each `stride` bytes after the one before."""

    offset: int
    length: int
    count: int = 1
    stride: int = 0

    @property
    def nbytes(self) -> int:
        return self.length * self.count


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def box_of(start: Sequence[int], shape: Sequence[int]) -> Box:
    return tuple((first, first + size) for first, size in zip(start, shape, strict=True))


def volume(box: Box) -> int:
    """Number of elements; a scalar has one."""
    return math.prod(stop - start for start, stop in box)


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def intersect(one: Box, other: Box) -> Box | None:
    """The common region; None if it is empty."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


def subtract(box: Box, part: Box) -> Iterator[Box]:
    """Boxes that cover `box` without `part`, which lies within it."""
    rest = list(box)
    for dim, ((start, stop), (first, last)) in enumerate(zip(box, part, strict=True)):
        if start < first:
            yield (*rest[:dim], (start, first), *rest[dim + 1 :])
        if last < stop:
            yield (*rest[:dim], (last, stop), *rest[dim + 1 :])
        rest[dim] = (first, last)


def runs(offset: int, shape: Sequence[int], itemsize: int, box: Box) -> Iterator[ByteRun]:
    """Bytes of the region of a tensor that is stored in row-major order at `offset`."""
    if volume(box) == 0:
        return
    strides = [itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    # Dimensions from `inner` on are contiguous in the file.
    inner = len(shape)
    while inner and (inner == len(shape) or box[inner] == (0, shape[inner])):
        inner -= 1
    length = itemsize * volume(box[inner:])
    start = offset + sum(first * stride for (first, _), stride in zip(box[inner:], strides[inner:]))
    if inner == 0:
        yield ByteRun(start, length)
        return
    first, stop = box[inner - 1]
    count, stride = stop - first, strides[inner - 1]
    for index in _indices(box[: inner - 1]):
        base = sum(i * each for i, each in zip(index, strides))
        yield ByteRun(start + base + first * stride, length, count, stride)


def _indices(box: Box) -> Iterator[tuple[int, ...]]:
    if not box:
        yield ()
        return
    for first in range(*box[0]):
        for rest in _indices(box[1:]):
            yield (first, *rest)


def split_rows(box: Box, itemsize: int, most: int) -> Iterable[Box]:
    """Parts of the region of at most `most` bytes, cut along its first dimension where possible."""
    if not box or volume(box) * itemsize <= most:
        return [box]
    (start, stop), *rest = box
    row = itemsize * volume(tuple(rest))
    step = max(1, most // row)
    return [((first, min(first + step, stop)), *rest) for first in range(start, stop, step)]
