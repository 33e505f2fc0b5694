"""The dense layers of a decoder over a serving step in one compiled call: a CPU's way through a small model."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.ops.attention import AttentionSpec
from rondo.ops.native.build import library
from rondo.ops.native.paged_decode import GIVEN, KEPT
from rondo.ops.native.product import MULTIPLE, TYPES
from rondo.ops.pages import Pages
from rondo.ops.rope import RopeSpec

HEAD_MULTIPLE = 8
"""So that no head's numbers need padding."""
WEIGHTS = (
    *("attention_norm", "q", "k", "v", "q_bias", "k_bias", "v_bias", "q_norm", "k_norm", "o", "o_bias"),
    *("mlp_norm", "gate", "up", "down"),
)
PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
_PAGES = ("keys", "values", "key_scales", "value_scales")
_SHAPE = ("heads", "kv", "dim", "rope", "half", "inner", "window")
_POINTERS = (
    *("layers", "x", "out", "tables", "owners", "lengths", "slots", "read"),
    *("cosines", "sines", "adapters", "memory"),
)
_NUMBERS = (
    *("count", "tokens", "reads", "hidden", "given", "kept"),
    *("size", "pages", "longest", "threads", "related"),
)


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*WEIGHTS, *_PAGES)),
        *((name, ctypes.c_int64) for name in _SHAPE),
        ("sites", ctypes.c_int64 * len(PROJECTIONS)),
        ("scale", ctypes.c_double),
    )


class _Args(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("eps", ctypes.c_double),
        ("offset", ctypes.c_double),
    )


@dataclass(frozen=True)
class DenseLayer:
    """Norms before its two halves, grouped queries, SwiGLU. `weights` are by the names of `WEIGHTS`; those of a bias or
    of a head's norm may be missing. `sites` are the numbers of its projections in an adapter's table."""

    spec: AttentionSpec
    rope: RopeSpec | None
    inner: int
    weights: Mapping[str, Tensor]
    sites: tuple[int, ...] = (0,) * len(PROJECTIONS)

    @property
    def fits(self) -> bool:
        spec, rope = self.spec, self.rope
        plain = spec.softcap is None and not spec.sinks and spec.value_dim == spec.head_dim
        widths = (spec.num_heads * spec.head_dim, self.inner, *self.weights["q"].shape[1:])
        turns = rope is None or (not rope.interleaved and rope.dim <= spec.head_dim)
        return (
            plain
            and turns
            and spec.head_dim % HEAD_MULTIPLE == 0
            and all(width % MULTIPLE == 0 for width in widths)
        )


@dataclass(frozen=True)
class TokenRows:
    """Tokens of a step, and whose past each sees: tables [R, P] of the requests' pages, owners [T] the request of each
    token, lengths [T] what it sees with itself counted, slots [T] where its key and value go. `related` where tokens of
    one request see each other. `adapters` [R] is the address of each request's table of low-rank pairs, or 0."""

    tables: Tensor
    owners: Tensor
    lengths: Tensor
    slots: Tensor
    longest: int
    related: bool
    adapters: Tensor | None = None


class DenseLayers:
    """Layers of one type on the CPU. Their parameters may change in place; pages may move."""

    def __init__(self, layers: Sequence[DenseLayer], eps: float, offset: float) -> None:
        self.layers = layers
        self.eps = eps
        self.offset = offset
        first = layers[0].weights["q"]
        self.hidden = first.shape[1]
        self.dtype = first.dtype
        self.ropes = list(dict.fromkeys(layer.rope for layer in layers if layer.rope is not None))
        self._known: list[int] = []
        self._table = (_Layer * len(layers))()
        self._memory = _floats(0)

    @staticmethod
    def fit(layers: Sequence[DenseLayer]) -> bool:
        tensors = [tensor for layer in layers for tensor in layer.weights.values()]
        alike = all(
            tensor.device.type == "cpu"
            and tensor.dtype == tensors[0].dtype
            and tensor.is_contiguous()
            and type(tensor) in (Tensor, torch.nn.Parameter)
            for tensor in tensors
        )
        known = tensors[0].dtype in TYPES
        return alike and known and all(layer.fits for layer in layers) and library("layers") is not None

    def __call__(
        self,
        x: Tensor,
        ropes: Mapping[RopeSpec, tuple[Tensor, Tensor]],
        rows: TokenRows,
        pages: Sequence[tuple[Pages, Pages]],
        read: Tensor | None,
    ) -> Tensor:
        """x [T, hidden], cos and sin of each rope [T, 1, half] -> the rows `read` [R] after all layers."""
        compiled = library("layers")
        assert compiled is not None
        self._point(pages)
        tables = [tuple(part.float().contiguous() for part in ropes[spec]) for spec in self.ropes]
        pointers = ctypes.c_void_p * max(1, len(tables))
        cosines = pointers(*(cos.data_ptr() for cos, _ in tables))
        sines = pointers(*(sin.data_ptr() for _, sin in tables))
        count = x.shape[0] if read is None else read.shape[0]
        out = torch.empty(count, self.hidden, dtype=self.dtype, device="cpu")
        keys = pages[0][0]
        arguments = _Args(
            ctypes.addressof(self._table),
            x.data_ptr(),
            out.data_ptr(),
            rows.tables.data_ptr(),
            rows.owners.data_ptr(),
            rows.lengths.data_ptr(),
            rows.slots.data_ptr(),
            None if read is None else read.data_ptr(),
            ctypes.addressof(cosines),
            ctypes.addressof(sines),
            _address(rows.adapters),
            None,
            len(self.layers),
            x.shape[0],
            count,
            self.hidden,
            GIVEN[self.dtype],
            KEPT[keys.dtype],
            keys.data.shape[1],
            rows.tables.shape[1],
            rows.longest,
            torch.get_num_threads(),
            rows.related,
            self.eps,
            self.offset,
        )
        compiled.layers_memory.restype = ctypes.c_int64
        wanted = compiled.layers_memory(ctypes.byref(arguments))
        if self._memory.numel() < wanted:
            self._memory = _floats(wanted)
        arguments.memory = self._memory.data_ptr()
        compiled.layers(ctypes.byref(arguments))
        return out

    def _point(self, pages: Sequence[tuple[Pages, Pages]]) -> None:
        """Writes down where everything is, again when pages have moved."""
        places = [tensor.data_ptr() for pair in pages for part in pair for tensor in part.tensors]
        if places == self._known:
            return
        for entry, layer, (keys, values) in zip(self._table, self.layers, pages, strict=True):
            spec, rope = layer.spec, layer.rope
            for name in WEIGHTS:
                setattr(entry, name, _address(layer.weights.get(name)))
            parts = (keys.data, values.data, keys.scales, values.scales)
            for name, part in zip(_PAGES, parts, strict=True):
                setattr(entry, name, _address(part))
            kind, half = (-1, 0) if rope is None else (self.ropes.index(rope), rope.dim // 2)
            numbers = (spec.num_heads, spec.num_kv_heads, spec.head_dim, kind, half, layer.inner)
            for name, number in zip(_SHAPE, (*numbers, spec.window or 0), strict=True):
                setattr(entry, name, number)
            entry.sites[:] = layer.sites
            entry.scale = spec.scale
        self._known = places


def _floats(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.float32, device="cpu")


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
