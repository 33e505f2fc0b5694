"""Models in which no layer sees further back than a window: blocks that have passed out of it are given back.

The widest layer counts. One layer that sees everything means that every block stays: then there is no `Window`.
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


def window_of(specs: Sequence[AttentionSpec], block_size: int) -> Window | None:
    widths = [spec.window for spec in specs if spec.window is not None]
    return Window(max(2, *widths), block_size) if widths and len(widths) == len(specs) else None
