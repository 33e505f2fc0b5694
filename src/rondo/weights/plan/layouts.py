"""Regions that the ranks of a learner or of an engine hold, from the names and shapes of a model's tensors.

Rows of q, k, v, gate, up, the embedding and the head, and columns of o and down, are split among tensor-parallel ranks;
experts among expert-parallel ranks; layers among pipeline stages; and the rows of every tensor once more by FSDP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from rondo.base.errors import ConfigError
from rondo.weights.plan.boxes import Box, whole
from rondo.weights.plan.planner import Part

Shapes = Mapping[str, tuple[tuple[int, ...], int]]
"""Shape and bytes per number of each tensor, by Hugging Face name."""

ROWS = re.compile(
    r"(q|k|v|qkv|gate|up|gate_up|q_b|kv_b|embed|lm)_(proj|tokens|head|up_proj)\.(weight|bias)$|lm_head"
)
COLUMNS = re.compile(r"(o_proj|down_proj)\.weight$")
LAYER = re.compile(r"\.layers\.(\d+)\.")
EXPERT = re.compile(r"\.experts\.(\d+)\.")


@dataclass(frozen=True)
class RankLayout:
    """Degrees of parallelism. `dp` counts copies, such as replicas of an engine."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    fsdp: int = 1
    dp: int = 1

    @property
    def ranks(self) -> int:
        """Ranks of one copy."""
        return self.pp * self.fsdp * self.tp

    @classmethod
    def parse(cls, text: str, param: str) -> RankLayout:
        """Such as "fsdp=2,tp=2"."""
        known = {each.name for each in fields(cls)}
        found: dict[str, int] = {}
        for each in filter(None, text.split(",")):
            name, _, count = each.partition("=")
            if name not in known or not count.isdigit() or int(count) < 1:
                raise ConfigError(
                    f"{each!r} is not one of {', '.join(sorted(known))} with a count, such as tp=2.",
                    param=param,
                )
            found[name] = int(count)
        return cls(**found)

    def parts(self, shapes: Shapes) -> list[list[Part]]:
        """The regions of each rank; ranks are numbered by pp, then fsdp, then tp."""
        layers = 1 + max((int(m[1]) for m in map(LAYER.search, shapes) if m), default=0)
        experts = 1 + max((int(m[1]) for m in map(EXPERT.search, shapes) if m), default=0)
        found: list[list[Part]] = [[] for _ in range(self.ranks)]
        size = self.fsdp * self.tp
        for name, (shape, _) in shapes.items():
            first = self._stage(name, layers) * size
            expert = EXPERT.search(name) if self.ep > 1 else None
            if expert:
                group = int(expert[1]) * self.ep // experts
                for rank in range(group % size, size, self.ep):
                    found[first + rank].append((name, whole(shape)))
                continue
            for tp in range(self.tp):
                cut = _cut(name, shape, tp, self.tp)
                for fsdp in range(self.fsdp):
                    box = cut if cut is None or self.fsdp == 1 else _rows(cut, fsdp, self.fsdp)
                    if box is not None:
                        found[first + fsdp * self.tp + tp].append((name, box))
        return found

    def _stage(self, name: str, layers: int) -> int:
        if found := LAYER.search(name):
            return int(found[1]) * self.pp // layers
        return 0 if "embed" in name else self.pp - 1


def _cut(name: str, shape: tuple[int, ...], rank: int, size: int) -> Box | None:
    box = whole(shape)
    if size == 1:
        return box
    if ROWS.search(name):
        return _rows(box, rank, size)
    if COLUMNS.search(name):
        start, stop = rank * shape[-1] // size, (rank + 1) * shape[-1] // size
        return (*box[:-1], (start, stop))
    return box


def _rows(box: Box, rank: int, size: int) -> Box | None:
    if not box:
        return box if rank == 0 else None
    (first, last), *rest = box
    count = last - first
    start, stop = first + rank * count // size, first + (rank + 1) * count // size
    return ((start, stop), *rest) if stop > start else None


def mixture(total: float, itemsize: int = 1) -> Shapes:
    """Tensors of a mixture-of-experts model with about `total` parameters: the shape of Kimi-K2, with fewer or more
    layers."""
    hidden, inner, experts, heads = 7168, 2048, 384, 64
    per_layer = 3 * hidden * inner * (experts + 1) + hidden * (1536 + 576) + 1536 * heads * 192
    per_layer += 512 * heads * 256 + heads * 128 * hidden
    layers = max(1, round((total - 2 * 163_840 * hidden) / per_layer))
    shapes: dict[str, tuple[tuple[int, ...], int]] = {
        "model.embed_tokens.weight": ((163_840, hidden), itemsize)
    }
    for i in range(layers):
        at = f"model.layers.{i}"
        attention = {
            "q_a_proj": (1536, hidden),
            "q_b_proj": (heads * 192, 1536),
            "kv_a_proj_with_mqa": (576, hidden),
            "kv_b_proj": (heads * 256, 512),
            "o_proj": (hidden, heads * 128),
        }
        for name, shape in attention.items():
            shapes[f"{at}.self_attn.{name}.weight"] = shape, itemsize
        for place in (*(f"experts.{e}" for e in range(experts)), "shared_experts"):
            shapes[f"{at}.mlp.{place}.gate_proj.weight"] = (inner, hidden), itemsize
            shapes[f"{at}.mlp.{place}.up_proj.weight"] = (inner, hidden), itemsize
            shapes[f"{at}.mlp.{place}.down_proj.weight"] = (hidden, inner), itemsize
    shapes["lm_head.weight"] = (163_840, hidden), itemsize
    return shapes


def total_bytes(shapes: Shapes) -> int:
    return sum(math.prod(shape) * itemsize for shape, itemsize in shapes.values())
