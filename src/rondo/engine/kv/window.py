"""Groups of layers by window size. Blocks that have left the window of a group are released in that group.

Layers of one group share block tables. Full-attention layers form a group without a `Window`; a model of identical
layers has one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rondo.ops import AttentionSpec


@dataclass(frozen=True, slots=True)
class Window:
    tokens: int
    """Window size in tokens, the current token included; at least 2, so that the next token attends to
    the last block."""
    block_size: int

    def passed(self, computed: int) -> int:
        """Number of leading blocks outside the window of the token after `computed` tokens, and of all later tokens."""
        return max(0, computed - self.tokens + 1) // self.block_size

    @property
    def most_blocks(self) -> int:
        """Maximum number of blocks of a request of any length, with room for its next token."""
        return 1 - (1 - self.tokens) // self.block_size


@dataclass(frozen=True, slots=True)
class Grouping:
    """Windows of the groups, the largest first, and the group of each layer."""

    windows: tuple[Window | None, ...]
    of: tuple[int, ...]

    def split(self, specs: Sequence[AttentionSpec]) -> list[list[AttentionSpec]]:
        """The layers of each group."""
        groups: list[list[AttentionSpec]] = [[] for _ in self.windows]
        for spec, group in zip(specs, self.of, strict=True):
            groups[group].append(spec)
        return groups


def group_layers(specs: Sequence[AttentionSpec], block_size: int, keeps_all: bool = False) -> Grouping:
    """Groups layers by window. With `keeps_all`, the first group has full attention even if no layer does."""
    seen = [None if spec.window is None else max(2, spec.window) for spec in specs]
    full = keeps_all or None in seen
    widths: list[int | None] = [None] if full else []
    widths += sorted({width for width in seen if width is not None}, reverse=True)
    windows = (None if width is None else Window(width, block_size) for width in widths)
    return Grouping(tuple(windows), tuple(map(widths.index, seen)))
