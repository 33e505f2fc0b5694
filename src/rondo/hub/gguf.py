"""Choice among the GGUF files of a repository, in the notation of llama.cpp and Ollama: `ORG/NAME:Q4_K_M`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from rondo.base.errors import ModelError, NotFound
from rondo.base.units import human_bytes
from rondo.hub.listing import HubFile
from rondo.hub.names import HubName

SUFFIX = ".gguf"
DEFAULT = "Q4_K_M"
"""The quantization of a name that selects none, as in llama.cpp and Ollama."""
_LABEL = r"(?:UD-)?(?:I?Q\d[A-Z0-9_]*|TQ\d_\d|MXFP4[A-Z0-9_]*|BF16|FP?16|FP?32)"
LABEL = re.compile(_LABEL, re.IGNORECASE)
_IN_NAME = re.compile(rf"(?:^|[-._])({_LABEL})(?=[-.]|$)", re.IGNORECASE)
_UNREADABLE = re.compile(r"(?:UD-)?(?:IQ|TQ|MXFP|Q[1-3])")
_PIECE = re.compile(r"-\d{5}-of-(\d{5})$")
_NO_MODELS = ("mmproj", "imatrix")
"""Beginnings of the names of image encoders and of calibration data."""


def is_gguf_model(path: str) -> bool:
    file = PurePosixPath(path)
    return file.suffix.lower() == SUFFIX and not file.name.lower().startswith((".", *_NO_MODELS))


def label_of(path: str) -> str:
    """The quantization of a file by its name or its folder's, such as `Q4_K_M`; else the name without suffix."""
    file = PurePosixPath(path)
    for name in (file.stem, file.parent.name):
        if found := _IN_NAME.findall(name):
            return _normal(found[-1])
    return file.stem


def gguf_files(folder: Path) -> list[HubFile]:
    """The GGUF files of a commit in the cache."""
    found = sorted(path for path in folder.rglob("*") if is_gguf_model(path.name) and path.is_file())
    return [HubFile(str(path.relative_to(folder)), path.stat().st_size, "") for path in found]


def choose_gguf(name: HubName, files: Sequence[HubFile]) -> HubFile:
    """The GGUF file that the name selects: by quantization or by file name; without either, the only one or Q4_K_M."""
    models = sorted((file for file in files if is_gguf_model(file.path)), key=_by_size)
    if not models:
        raise NotFound(
            f"{name.repo} has no GGUF files, so {name.part!r} selects nothing: leave it out ({name.repo}).",
            param="model",
        )
    found = _selected(name.part, models)
    if not found:
        problem = f"has no GGUF file {name.part!r}" if name.part else f"has {len(models)} GGUF files"
        raise NotFound(f"{name.repo} {problem}. {_choices(name, models)}", param="model")
    if (piece := _PIECE.search(PurePosixPath(found[0].path).stem)) is not None:
        raise ModelError(
            f"{label_of(found[0].path)} of {name.repo} is split into {int(piece[1])} files, which are not read one by "
            f"one. {_choices(name, models)}"
        )
    if len(found) > 1:
        raise NotFound(
            f"{name} matches {len(found)} files. Choose one: {_names(name, [file.path for file in found])}",
            param="model",
        )
    if _UNREADABLE.match(label_of(found[0].path)):
        raise ModelError(
            f"{label_of(found[0].path)} of {name.repo} is a quantization that is not supported. "
            f"{_choices(name, models)}"
        )
    return found[0]


def _selected(part: str, models: list[HubFile]) -> list[HubFile]:
    if not part:
        return models if len(models) == 1 else _selected(DEFAULT, models)
    if part.lower().endswith(SUFFIX):
        return [file for file in models if part in (file.path, PurePosixPath(file.path).name)]
    wanted = _normal(part)
    return [file for file in models if wanted in (label_of(file.path), label_of(file.path).upper())]


def _choices(name: HubName, models: list[HubFile]) -> str:
    """A sentence with the files that can be loaded."""
    whole = [file for file in models if not _PIECE.search(PurePosixPath(file.path).stem)]
    usable = {label_of(file.path): file for file in whole if not _UNREADABLE.match(label_of(file.path))}
    if not usable:
        return "None of its GGUF files can be loaded: choose another repository."
    sizes = ", ".join(f"{label} ({human_bytes(file.size)})" for label, file in usable.items())
    example = DEFAULT if DEFAULT in usable else next(iter(usable))
    return f"Choose one of {sizes}, for example `{name.repo_at}:{example}`"


def _names(name: HubName, paths: list[str]) -> str:
    shown = ", ".join(f"{name.repo_at}:{path}" for path in paths[:8])
    return shown + (" ..." if len(paths) > 8 else "")


def _normal(label: str) -> str:
    return label.upper().replace("FP16", "F16").replace("FP32", "F32")


def _by_size(file: HubFile) -> int:
    return file.size
