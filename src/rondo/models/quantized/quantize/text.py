"""Text for calibration and for measuring perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

import torch

from rondo.base.errors import InvalidRequest
from rondo.models.attend import Packed
from rondo.models.decoder import Decoder
from rondo.text.tokenizer import Tokenizer

LONGEST = 512
"""Maximum tokens in a row of text."""
MOST_ROWS = 128
HELD_OUT = 8
"""One row in HELD_OUT is for the measurement and not for calibration; at most MOST_ROWS."""
LEAST_TOKENS = 64


@dataclass(frozen=True)
class Text:
    calibration: list[list[int]]
    held_out: list[list[int]]


def built_in() -> list[str]:
    """Paragraphs of several kinds, shipped with the package."""
    text = files(__package__).joinpath("calibration.txt").read_text("utf-8")
    return [paragraph for paragraph in text.split("\n\n") if paragraph.strip()]


def prepare(texts: Iterable[str], tokenizer: Tokenizer, model: Decoder) -> Text:
    """Concatenates the documents and cuts them into rows; every eighth row is held out, so that both sets cover the
    whole text."""
    tokens: list[int] = []
    for ids in tokenizer.encode_batch(list(texts)):
        tokens += ids
    if len(tokens) < LEAST_TOKENS:
        raise InvalidRequest(
            f"the text has {len(tokens)} tokens, and {LEAST_TOKENS} are the least that tells anything: give more.",
            param="data",
        )
    size = min(LONGEST, model.config.max_positions, max(LEAST_TOKENS // HELD_OUT, len(tokens) // HELD_OUT))
    rows = [tokens[start : start + size] for start in range(0, len(tokens) - 1, size)]
    rows = [row for row in rows if len(row) > 1]
    held_out = rows[HELD_OUT - 1 :: HELD_OUT]
    kept = [row for index, row in enumerate(rows) if index % HELD_OUT != HELD_OUT - 1]
    return Text(_evenly(kept), _evenly(held_out))


def _evenly(rows: list[list[int]]) -> list[list[int]]:
    """At most MOST_ROWS rows, evenly spaced."""
    step = max(1, math.ceil(len(rows) / MOST_ROWS))
    return rows[::step]


@torch.no_grad()
def perplexity(model: Decoder, rows: Sequence[Sequence[int]]) -> float:
    """Perplexity over all tokens of the rows except the first of each."""
    total, count = 0.0, 0
    for row in rows:
        tokens, attend = torch.tensor(row, device=model.device), Packed([0, len(row)], model.device)
        logits = model(tokens, attend.positions, attend)[:-1].float()
        total += float(torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="sum"))
        count += len(row) - 1
    return math.exp(min(total / count, 700.0))
