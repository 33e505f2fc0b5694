"""Writing a model as a GGUF file for llama.cpp, tensor by tensor, with its tokenizer and chat template."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from rondo.base.errors import Conflict, InvalidRequest, ModelError
from rondo.base.storage.files import move_file, storage_error
from rondo.base.storage.gguf import (
    ALIGNMENT,
    MAGIC,
    Gguf,
    GgufEntry,
    entry_bytes,
    metadata_bytes,
)
from rondo.models.architecture import ModelConfig
from rondo.models.families import parse
from rondo.models.files.checkpoint import build, check
from rondo.models.files.gguf.architectures import Architecture, family_architecture, gguf_name
from rondo.models.files.gguf.blocks import PLAIN, TYPES, encoded
from rondo.models.files.gguf.config import config_of
from rondo.models.files.gguf.fields import architecture_fields, factors_of, rope_tensors
from rondo.models.files.headers import read_config
from rondo.models.files.safetensors import StoredTensor
from rondo.ops.pointwise.rope import RopeSpec
from rondo.text.folder import read_folder
from rondo.text.gguf.writing import tokenizer_metadata

Report = Callable[[str, int, int], None]

FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "BF16": 32}
"""Type of most tensors -> `general.file_type`."""
OF_DTYPE = {dtype: name for name, dtype in PLAIN.items()}
OUTER = ("token_embd.weight", "output.weight")
PIECE_BYTES = 32 << 20
NOT_COMPARED = ("family", "hf", "eos_ids", "bos_id", "pad_id")
"""Fields of a config that the file has elsewhere, or does not need."""


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor to write. `parts` are stored one after another: the experts of a layer."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    parts: tuple[Callable[[], Tensor], ...]

    @property
    def nbytes(self) -> int:
        kind = TYPES[self.type_name]
        return math.prod(self.shape) // kind.numbers * kind.size


def export_gguf(
    source: Path,
    file: Path,
    type_name: str | None = None,
    *,
    name: str = "",
    replace: bool = False,
    report: Report | None = None,
) -> Path:
    """Writes the model folder `source` to `file`. `type_name` is the type of the matrices, by default that of the
    stored weights; `name` is the model's name in the file."""
    file = file.absolute()
    if file.is_dir() or (file.exists() and not replace):
        raise Conflict(f"{file} already exists. Choose another path, or give --replace.")
    hf = read_config(source)
    config = parse(hf)
    if config.quantization is not None or config.scores:
        kind = "a reward model" if config.scores else f"quantized ({config.quantization.method})"  # type: ignore[union-attr]
        raise InvalidRequest(
            f"{source} is {kind}, which is not written as GGUF. Export the plain model.", param="model"
        )
    arch, architecture = family_architecture(hf)
    tensors = _tensors(source, config, architecture, type_name)
    metadata = {
        "general.architecture": arch,
        "general.name": name or source.name,
        **_general(tensors),
        **architecture_fields(arch, architecture, config),
    }
    _check_expressed(file, metadata, tensors, config)
    folder = read_folder(source)
    metadata |= tokenizer_metadata(folder, config.vocab_size, config.eos_ids)
    with _new_file(file, sum(tensor.nbytes for tensor in tensors)) as out:
        _write(out, metadata, tensors, report)
    return file


def _general(tensors: list[WrittenTensor]) -> dict[str, Any]:
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.name not in OUTER:
            sizes[tensor.type_name] = sizes.get(tensor.type_name, 0) + tensor.nbytes
    most = max((name for name in sizes if name in FILE_TYPES), key=lambda name: sizes[name])
    return {"general.file_type": FILE_TYPES[most], "general.quantization_version": 2}


def _tensors(
    source: Path, config: ModelConfig, architecture: Architecture, type_name: str | None
) -> list[WrittenTensor]:
    stored = check(source)
    parts: dict[str, list[StoredTensor]] = {}
    for slot in build(config).slots():
        found = gguf_name(architecture, slot.name)
        if found is None:
            raise ModelError(f"GGUF has no name for {slot.name} of a {config.family} model.", param=slot.name)
        parts.setdefault(found.name, []).append(stored[slot.name])
    heads = {
        "attn_q": config.layers[0].attention.num_heads,
        "attn_k": config.layers[0].attention.num_kv_heads,
    }
    tensors = []
    for name, pieces in parts.items():
        swapped = heads.get(name.split(".")[-2]) if architecture.swaps_pairs else None
        added = architecture.adds_one and name.endswith("norm.weight")
        shape = pieces[0].shape if "_exps." not in name else (len(pieces), *pieces[0].shape)
        makes = tuple(_maker(piece, swapped, added) for piece in pieces)
        tensors.append(WrittenTensor(name, _type_of(name, pieces[0], type_name), shape, makes))
    extra = rope_tensors(config)
    return [
        *tensors,
        *(WrittenTensor(name, "F32", (len(v),), (lambda v=v: torch.tensor(v),)) for name, v in extra.items()),  # type: ignore[misc]
    ]


def _maker(stored: StoredTensor, heads: int | None, added: bool) -> Callable[[], Tensor]:
    def make() -> Tensor:
        tensor = stored.mapped()
        if heads is not None:
            tensor = tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
        return tensor.float() + 1 if added else tensor

    return make


def _type_of(name: str, stored: StoredTensor, type_name: str | None) -> str:
    """llama.cpp expects vectors and routers in F32. The embedding and the head lose most by 4 bits."""
    if len(stored.shape) == 1 or "ffn_gate_inp" in name:
        return "F32"
    own = OF_DTYPE.get(stored.dtype, "F32")
    chosen = type_name or own
    if chosen == "Q4_0" and name in OUTER:
        chosen = "Q8_0"
    if stored.shape[-1] % TYPES[chosen].numbers:
        return own
    return chosen


def _check_expressed(
    file: Path, metadata: dict[str, Any], tensors: list[WrittenTensor], config: ModelConfig
) -> None:
    """Raises unless a reader of the file gets the same architecture."""
    data, entries = b"", {}
    for tensor in tensors:
        start = len(data)
        if tensor.name.startswith("rope_"):
            data += struct.pack(f"<{tensor.shape[0]}f", *tensor.parts[0]().tolist())
        entries[tensor.name] = GgufEntry(tensor.name, TYPES[tensor.type_name], tensor.shape, start, len(data))
    read = parse(config_of(Gguf(file, data, metadata, entries)))
    same = {name: getattr(config, name) for name in NOT_COMPARED}
    problems = list(_differences(config, replace(read, **same), ""))
    if problems:
        raise ModelError(f"GGUF cannot express this {config.family} model: {'; '.join(problems[:4])}.")


def _differences(ours: Any, read: Any, path: str) -> Iterator[str]:
    if isinstance(ours, RopeSpec) and isinstance(read, RopeSpec):
        ours, read = _comparable(ours), _comparable(read)
    if dataclasses.is_dataclass(ours) and type(ours) is type(read):
        for field in dataclasses.fields(ours):
            inner = f"{path}.{field.name}" if path else field.name
            yield from _differences(getattr(ours, field.name), getattr(read, field.name), inner)
    elif isinstance(ours, tuple) and isinstance(read, tuple) and len(ours) == len(read):
        for index, (one, other) in enumerate(zip(ours, read, strict=True)):
            yield from _differences(one, other, f"{path}.{index}")
    elif isinstance(ours, float) and isinstance(read, float):
        if not math.isclose(ours, read, rel_tol=1e-6):
            yield f"{path} is {ours}, and would be {read}"
    elif ours != read:
        yield f"{path} is {str(ours)[:60]}, and would be {str(read)[:60]}"


def _comparable(spec: RopeSpec) -> RopeSpec:
    """Llama 3's settings as the factors that the file has in their place."""
    if spec.kind == "llama3":
        factors = tuple(factors_of(spec))
        return RopeSpec(spec.dim, spec.theta, "longrope", short_factor=factors, long_factor=factors)
    if spec.kind == "longrope" and spec.short_factor == spec.long_factor:
        return replace(spec, original_max_positions=0, factor=1.0)
    return spec


@contextlib.contextmanager
def _new_file(path: Path, needed: int) -> Iterator[IO[bytes]]:
    """A file that appears at `path` when the block ends well."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            yield file.file
        os.chmod(temporary, 0o644)
        move_file(temporary, path)
    except OSError as error:
        raise storage_error(path, error, needed) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _write(
    file: IO[bytes], metadata: Mapping[str, Any], tensors: list[WrittenTensor], report: Report | None
) -> None:
    file.write(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        file.write(metadata_bytes(key, value))
    offset = 0
    for tensor in tensors:
        file.write(entry_bytes(tensor.name, tensor.shape, tensor.type_name, offset))
        offset += _padded(tensor.nbytes)
    file.write(bytes(-file.tell() % ALIGNMENT))
    done = 0
    for tensor in tensors:
        for piece in _pieces(tensor):
            file.write(piece.numpy().data)
            done += piece.nbytes
            if report is not None:
                report("writing", min(done, offset), offset)
        file.write(bytes(-file.tell() % ALIGNMENT))


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _pieces(tensor: WrittenTensor) -> Iterator[Tensor]:
    """The bytes of a tensor, a number of rows at a time."""
    for make in tensor.parts:
        rows = make()
        row_bytes = 4 * math.prod(rows.shape[1:])
        try:
            for piece in rows.split(max(1, PIECE_BYTES // row_bytes)):  # type: ignore[no-untyped-call]
                yield encoded(piece, tensor.type_name).flatten()
        except ModelError as error:
            raise ModelError(f"{tensor.name}: {error.message}", param="type") from None
