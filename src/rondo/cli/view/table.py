"""Columns of text."""

from __future__ import annotations

from collections.abc import Sequence

NARROWEST = 8


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]


def fitted(table: Sequence[Sequence[str]], columns: Sequence[int], width: int = 80) -> list[list[str]]:
    """The table with the widest of `columns` cut until its lines have at most `width` characters."""
    widths = [max(map(len, each)) for each in zip(*table, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(columns, key=lambda column: widths[column])
        if widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
    return [
        [
            cell if len(cell) <= most else cell[: most - 1] + "…"
            for cell, most in zip(row, widths, strict=True)
        ]
        for row in table
    ]
