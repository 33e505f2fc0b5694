"""Groups of layers by how far back they see. What has passed out of a group's window is given back there.

Layers of one group have their keys and values in the same blocks. Those that see everything are a group too, with no
`Window`; a model whose layers are all alike is one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rondo.ops import AttentionSpec


@dataclass(frozen=True, slots=True)
class Window:
    tokens: int
    """How many tokens a token sees, itself included; at least 2, so that the next token sees the last block."""
    block_size: int

    def passed(self, computed: int) -> int:
        """How many blocks, from the first, the token after `computed` others does not see; nor do later ones."""
        return max(0, computed - self.tokens + 1) // self.block_size

    @property
    def most_blocks(self) -> int:
        """What a request of any length holds at most, with room for its next token."""
        return 1 - (1 - self.tokens) // self.block_size


@dataclass(frozen=True, slots=True)
class Grouping:
    """The groups' windows, the one that sees the most first, and the group of each layer."""

    windows: tuple[Window | None, ...]
    of: tuple[int, ...]

    def split(self, specs: Sequence[AttentionSpec]) -> list[list[AttentionSpec]]:
        """The layers of each group."""
        groups: list[list[AttentionSpec]] = [[] for _ in self.windows]
        for spec, group in zip(specs, self.of, strict=True):
            groups[group].append(spec)
        return groups


def group_layers(specs: Sequence[AttentionSpec], block_size: int, keeps_all: bool = False) -> Grouping:
    """With `keeps_all` the first group sees everything, even if none of these layers does."""
    seen = [None if spec.window is None else max(2, spec.window) for spec in specs]
    full = keeps_all or None in seen
    widths: list[int | None] = [None] if full else []
    widths += sorted({width for width in seen if width is not None}, reverse=True)
    windows = (None if width is None else Window(width, block_size) for width in widths)
    return Grouping(tuple(windows), tuple(map(widths.index, seen)))
