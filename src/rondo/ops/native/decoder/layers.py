"""A serving step of a dense decoder in one compiled call, for small models on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.ops.attention.packed import AttentionSpec
from rondo.ops.attention.pages import Pages
from rondo.ops.gemm.quantized import Quantized
from rondo.ops.native.build.build import library
from rondo.ops.native.build.numbers import GIVEN, KEPT
from rondo.ops.native.build.readable import address, readable
from rondo.ops.native.quantized.quantized import CWeight, fits
from rondo.ops.pointwise.rope import RopeSpec, rope_tables

HEAD_MULTIPLE, WIDTH_MULTIPLE = 8, 16
"""Multiples of head and layer widths that avoid padding and loop remainders."""
TYPES = (torch.float32, torch.bfloat16)
PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
"""Projections, each of which may have a quantized weight."""
VECTORS = ("attention_norm", "q_bias", "k_bias", "v_bias", "q_norm", "k_norm", "o_bias", "mlp_norm")
_PAGES = ("keys", "values", "key_scales", "value_scales")
_SHAPE = ("heads", "kv", "dim", "rope", "half", "inner", "window", "group")
_POINTERS = (
    *("layers", "embedding", "head_norm", "out", "logits"),
    *("ids", "tables", "owners", "lengths", "slots", "read"),
    *("cosines", "sines", "turns", "adapters", "memory"),
)
_NUMBERS = (
    *("count", "tokens", "reads", "hidden", "width", "given", "kept"),
    *("size", "pages", "longest", "threads", "related", "requests"),
)
POSITIONS = 1024
"""Positions for which rotations are computed at a time."""


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, CWeight) for name in PROJECTIONS),
        *((name, ctypes.c_void_p) for name in (*VECTORS, *_PAGES)),
        *((name, ctypes.c_int64) for name in _SHAPE),
        ("sites", ctypes.c_int64 * len(PROJECTIONS)),
        ("scale", ctypes.c_double),
    )


class _Args(ctypes.Structure):
    _fields_ = (
        ("head", CWeight),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        *((name, ctypes.c_double) for name in ("eps", "offset", "scale")),
    )


@dataclass(frozen=True)
class DenseLayer:
    """A dense layer: pre-norms, grouped-query attention, SwiGLU. `weights` are by the names of `PROJECTIONS` and
    `VECTORS`; biases and head norms are optional. `sites` are the indices of its projections in an adapter's table;
    layers of one `group` have their keys and values in the same pages."""

    spec: AttentionSpec
    rope: RopeSpec | None
    inner: int
    weights: Mapping[str, Tensor | Quantized]
    sites: tuple[int, ...] = (0,) * len(PROJECTIONS)
    group: int = 0

    @property
    def fits(self) -> bool:
        spec, rope = self.spec, self.rope
        plain = spec.softcap is None and not spec.sinks and spec.value_dim == spec.head_dim
        widths = (spec.num_heads * spec.head_dim, self.inner, *self.weights["q"].shape[1:])
        turns = rope is None or (
            not rope.interleaved and rope.dim <= spec.head_dim and rope.dim % HEAD_MULTIPLE == 0
        )
        return (
            plain
            and turns
            and spec.head_dim % HEAD_MULTIPLE == 0
            and all(width % WIDTH_MULTIPLE == 0 for width in widths)
        )


@dataclass(frozen=True)
class Ends:
    """The input and output of the layers: embedding [.., hidden] and its scale, the head's norm and weight [V,
    hidden]."""

    embedding: Tensor
    scale: float | None
    norm: Tensor
    head: Tensor | Quantized


@dataclass(frozen=True)
class TokenRows:
    """Tokens of a step: ids and positions [T], all positions below `end`; page tables [G, R, P] by group of layers and
    request, owners [T] the request of each token, lengths [T] of its past including itself, slots [G, T] for its key
    and value. `wholes` [T], the length of each token's request, is set if rotations depend on it. `related` is whether
    tokens of one request attend to each other. `adapters` [R] is the address of each request's table of low-rank pairs,
    or 0."""

    ids: Tensor
    positions: Tensor
    end: int
    tables: Tensor
    owners: Tensor
    lengths: Tensor
    slots: Tensor
    longest: int
    related: bool
    wholes: Tensor | None = None
    adapters: Tensor | None = None


class Rotations:
    """Cosines and sines [.., half] of one RoPE spec, by position."""

    def __init__(self, spec: RopeSpec, dtype: torch.dtype) -> None:
        self.spec = spec
        self.dtype = dtype
        self._known = _floats(0, spec.dim // 2), _floats(0, spec.dim // 2)

    def __call__(self, rows: TokenRows) -> tuple[Tensor, Tensor, Tensor]:
        """Cosines, sines, and the row of each token in them."""
        if self.spec.by_length:
            return *self._of(rows.positions, rows.wholes), torch.arange(rows.positions.shape[0], device="cpu")
        known = self._known[0].shape[0]
        if known < rows.end:
            # The fixed size makes a position's rotation independent of when it was first needed.
            starts = range(known, rows.end, POSITIONS)
            more = [self._of(torch.arange(first, first + POSITIONS, device="cpu"), None) for first in starts]
            cosines, sines = (torch.cat(parts) for parts in zip(self._known, *more, strict=True))
            self._known = cosines, sines
        return *self._known, rows.positions

    def _of(self, positions: Tensor, wholes: Tensor | None) -> tuple[Tensor, Tensor]:
        cosines, sines = rope_tables(self.spec, positions, wholes, self.dtype)
        return cosines.float().flatten(1), sines.float().flatten(1)


class DenseDecoder:
    """A decoder of one dtype on the CPU. Its parameters may change in place; pages may move."""

    def __init__(self, layers: Sequence[DenseLayer], ends: Ends, eps: float, offset: float) -> None:
        self.layers = layers
        self.ends = ends
        self.eps = eps
        self.offset = offset
        self.width, self.hidden = ends.head.shape
        self.dtype = ends.embedding.dtype
        # The model multiplies by the scale in its own dtype.
        self.scale = 1.0 if ends.scale is None else torch.tensor(ends.scale, dtype=self.dtype).item()
        kinds = dict.fromkeys(layer.rope for layer in layers if layer.rope is not None)
        self.ropes = {spec: Rotations(spec, self.dtype) for spec in kinds}
        self._known: list[int] = []
        self._table = (_Layer * len(layers))()
        self._memory = _floats(0)

    @staticmethod
    def fits(layers: Sequence[DenseLayer], ends: Ends) -> bool:
        weights = [weight for layer in layers for weight in layer.weights.values()]
        weights += [ends.embedding, ends.norm, ends.head]
        tensors = [weight for weight in weights if isinstance(weight, Tensor)]
        alike = readable(*tensors) and all(tensor.is_contiguous() for tensor in tensors)
        alike = alike and all(fits(weight) for weight in weights if isinstance(weight, Quantized))
        known = tensors[0].dtype in TYPES and ends.head.shape[1] % WIDTH_MULTIPLE == 0
        # Threads may be in different layers, each with its own rows of the queries.
        known = known and len({layer.weights["q"].shape[0] for layer in layers}) == 1
        return alike and known and all(layer.fits for layer in layers) and library("layers") is not None

    def logits(self, rows: TokenRows, pages: Sequence[tuple[Pages, Pages]], read: Tensor | None) -> Tensor:
        """Logits [R, V] in fp32 for the tokens `read` [R], or all."""
        out = _floats(_count(rows, read), self.width)
        self._run(rows, pages, read, logits=out)
        return out

    def trunk(self, rows: TokenRows, pages: Sequence[tuple[Pages, Pages]], read: Tensor | None) -> Tensor:
        """The hidden states before the head, [R, hidden]."""
        out = torch.empty(_count(rows, read), self.hidden, dtype=self.dtype, device="cpu")
        self._run(rows, pages, read, out=out)
        return out

    def head(self, x: Tensor) -> Tensor:
        """[R, hidden] -> logits [R, V] in fp32."""
        count = x.shape[0]
        logits = _floats(count, self.width)
        each = {"embedding": x.contiguous(), "ids": torch.arange(count, device="cpu"), "logits": logits}
        self._call(each, tokens=count, reads=count, scale=1.0)
        return logits

    def _run(
        self, rows: TokenRows, pages: Sequence[tuple[Pages, Pages]], read: Tensor | None, **out: Tensor
    ) -> None:
        self._point(pages)
        turns = [rotations(rows) for rotations in self.ropes.values()]
        pointers = ctypes.c_void_p * max(1, len(turns))
        kinds = [pointers(*(part.data_ptr() for part in parts)) for parts in zip(*turns, strict=True)]
        keys = pages[0][0]
        each = {
            name: getattr(rows, name) for name in ("ids", "tables", "owners", "lengths", "slots", "adapters")
        }
        self._call(
            {"embedding": self.ends.embedding, "read": read, **each, **out},
            **dict(zip(("cosines", "sines", "turns"), map(ctypes.addressof, kinds))),
            layers=ctypes.addressof(self._table),
            count=len(self.layers),
            tokens=rows.ids.shape[0],
            reads=_count(rows, read),
            kept=KEPT[keys.dtype],
            size=keys.data.shape[1],
            pages=rows.tables.shape[2],
            requests=rows.tables.shape[1],
            longest=rows.longest,
            related=rows.related,
            scale=self.scale,
        )

    def _call(self, tensors: Mapping[str, Tensor | None], **others: float) -> None:
        compiled = library("layers")
        assert compiled is not None
        arguments = _Args(
            head_norm=self.ends.norm.data_ptr(),
            head=CWeight.of(self.ends.head),
            hidden=self.hidden,
            width=self.width,
            given=GIVEN[self.dtype],
            threads=torch.get_num_threads(),
            eps=self.eps,
            offset=self.offset,
            **{name: _address(tensor) for name, tensor in tensors.items()},
            **others,
        )
        compiled.layers_memory.restype = ctypes.c_int64
        wanted = compiled.layers_memory(ctypes.byref(arguments))
        if self._memory.numel() < wanted:
            self._memory = _floats(wanted)
        arguments.memory = self._memory.data_ptr()
        compiled.layers(ctypes.byref(arguments))

    def _point(self, pages: Sequence[tuple[Pages, Pages]]) -> None:
        """Writes the addresses of weights and pages to the table, again after pages moved."""
        places = [tensor.data_ptr() for pair in pages for part in pair for tensor in part.tensors]
        if places == self._known:
            return
        for entry, layer, (keys, values) in zip(self._table, self.layers, pages, strict=True):
            spec, rope = layer.spec, layer.rope
            for name in PROJECTIONS:
                setattr(entry, name, CWeight.of(layer.weights[name]))
            for name in VECTORS:
                setattr(entry, name, _address(layer.weights.get(name)))
            parts = (keys.data, values.data, keys.scales, values.scales)
            for name, part in zip(_PAGES, parts, strict=True):
                setattr(entry, name, _address(part))
            kind, half = (-1, 0) if rope is None else (list(self.ropes).index(rope), rope.dim // 2)
            numbers = (spec.num_heads, spec.num_kv_heads, spec.head_dim, kind, half, layer.inner)
            for name, number in zip(_SHAPE, (*numbers, spec.window or 0, layer.group), strict=True):
                setattr(entry, name, number)
            entry.sites[:] = layer.sites
            entry.scale = spec.scale
        self._known = places


def _floats(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def _count(rows: TokenRows, read: Tensor | None) -> int:
    """The number of result rows."""
    return rows.ids.shape[0] if read is None else read.shape[0]


def _address(tensor: Tensor | Quantized | None) -> int | None:
    assert not isinstance(tensor, Quantized)
    return address(tensor)
