"""Places of a model's tensors in a GGUF file, under their Hugging Face names. Imports no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.base.errors import ModelError
from rondo.base.storage.gguf import Gguf, GgufEntry, read_gguf
from rondo.models.files.gguf.architectures import FACTORS, architecture_of, hf_names
from rondo.models.quantized.scheme import FIELD

KEPT_TYPES = ("Q8_0", "Q4_0")
"""Types with the same numbers as Rondo's own int8 and int4 weights with a scale for 32 columns."""
EXPERT = re.compile(r"(?<=experts)\.\d+\.")


@dataclass(frozen=True)
class Placed:
    """One Hugging Face tensor: a GGUF tensor, or one expert's part of it."""

    entry: GgufEntry
    shape: tuple[int, ...]
    start: int
    stop: int


def placed(gguf: Gguf) -> dict[str, Placed]:
    architecture = architecture_of(gguf)
    found: dict[str, Placed] = {}
    for entry in gguf.tensors.values():
        if entry.name in FACTORS:
            continue
        names = list(hf_names(architecture, entry.name, entry.shape[0]))
        if not names:
            raise ModelError(
                f"{gguf.path}: a {architecture.model_type} model has no tensor {entry.name!r}. The file may be a "
                "variant of this architecture: use the model's safetensors files.",
                param=entry.name,
            )
        for each in names:
            found[each.name] = _part(entry, each.expert)
    return found


def _part(entry: GgufEntry, expert: int | None) -> Placed:
    if expert is None:
        return Placed(entry, entry.shape, entry.start, entry.stop)
    size = (entry.stop - entry.start) // entry.shape[0]
    start = entry.start + expert * size
    return Placed(entry, entry.shape[1:], start, start + size)


def kept_names(gguf: Gguf) -> dict[str, list[str]]:
    """The linear modules whose weights can stay quantized, by type. Embeddings, whose rows are looked up, cannot; the
    experts of a layer are one module, so that all of their weights stay or none."""
    inside = {
        name.removesuffix(".weight"): place.entry.type.name
        for name, place in placed(gguf).items()
        if name == "lm_head.weight" or (".layers." in name and name.endswith(".weight"))
    }
    mixed = {_owner(name) for name, kind in inside.items() if kind not in KEPT_TYPES} - {None}
    found: dict[str, list[str]] = {}
    for name, kind in inside.items():
        if kind in KEPT_TYPES and _owner(name) not in mixed:
            found.setdefault(kind, []).append(name)
    return found


def _owner(name: str) -> str | None:
    """The module of a layer's experts; None for other modules."""
    found = EXPERT.search(name)
    return None if found is None else name[: found.start()]


def kept_quantization(path: Path) -> dict[str, Any]:
    """The `quantization_config` of a model whose weights stay quantized; empty if the file has no such weights."""
    kept = {
        name: sorted({EXPERT.sub(".*.", module) for module in modules})
        for name, modules in kept_names(read_gguf(path)).items()
    }
    return {FIELD: {"quant_method": "gguf", **kept}} if kept else {}
