"""Loading and saving a model folder. A model is built on the meta device and filled tensor by tensor, so memory holds
at most one copy."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from rondo.base.errors import ModelError
from rondo.base.storage.files import atomic_dir
from rondo.base.storage.gguf import is_gguf
from rondo.base.telemetry.activity import activity
from rondo.hub.cache import repo_of_snapshot
from rondo.models.adapters.merged import is_quantized_base, merged_outgoing
from rondo.models.architecture import ModelConfig
from rondo.models.decoder import Decoder
from rondo.models.devices import device_named
from rondo.models.families import family_of, parse
from rondo.models.files import safetensors
from rondo.models.files.gguf.header import kept_quantization
from rondo.models.files.headers import read_config
from rondo.models.files.mapping import outgoing
from rondo.models.files.safetensors import StoredTensor
from rondo.models.files.safetensors_write import write
from rondo.models.files.slots import Slot
from rondo.models.quantized.reading import check as check_quantized
from rondo.models.quantized.reading import divide, put

Progress = Callable[[int], None]
"""Callback with the number of bytes just read or written."""

MAX_SHARD_BYTES = 5 * 10**9
KEPT_AS_STORED = ("router.correction",)
"""Parameters without a cast: small, and added to fp32 scores. DeepSeek ships them in fp32 beside bf16 weights."""


def build(config: ModelConfig) -> Decoder:
    """Builds the model on the meta device, without allocating memory."""
    with torch.device("meta"):
        return Decoder(config)


def load(
    folder: str | Path,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
    *,
    keep_quantized: bool = False,
) -> Decoder:
    """Load a Hugging Face folder or a GGUF file. `dtype=None` selects the dtype of most of the stored weights.

    On a CPU, tensors that need no conversion are memory-mapped: the pages are shared with other processes until
    written. Weights of a GGUF file are dequantized; with `keep_quantized`, those of type Q8_0 and Q4_0 are not.
    """
    folder = Path(folder)
    if not folder.is_dir() and not is_gguf(folder):
        raise ModelError(f"{folder} is not a folder, and not a GGUF file")
    config = read_config(folder)
    if keep_quantized and is_gguf(folder):
        config |= kept_quantization(folder)
    model = build(parse(config))
    with activity(f"loading the weights of {_shown(folder)}"):
        fill(model, model.slots(), folder, dtype, device, progress)
    model.folder = folder.absolute()
    return model


def fill(
    model: Decoder,
    table: list[Slot],
    folder: Path,
    dtype: torch.dtype | None,
    device: str | torch.device,
    progress: Progress | None,
) -> None:
    """Fills the parameters of a model on the meta device. `table` lists every stored tensor, but its pieces may cover
    only parts of them."""
    stored = safetensors.open_checkpoint(folder, keep_quantized=model.config.quantization is not None)
    plain, weights = divide(model, table)
    _check(model, plain, check_quantized(weights, plain, stored, folder), folder)
    target, count = device_named(device), progress or (lambda count: None)
    _fill(model, plain, stored, dtype or _own_dtype(model.config, plain, stored), target, count)
    if weights:
        put(model, weights, stored, target, count)


def check(folder: Path) -> dict[str, StoredTensor]:
    """Validates that the folder is a complete model, from its config and headers only. Returns its stored tensors."""
    model = build(parse(read_config(folder)))
    stored = safetensors.open_checkpoint(folder)
    plain, weights = divide(model, model.slots())
    _check(model, plain, check_quantized(weights, plain, stored, folder), folder)
    return stored


def one_type(folder: Path) -> torch.dtype | None:
    """The dtype of all stored weights except KEPT_AS_STORED. None if there are several, or if weights are quantized."""
    model = build(parse(read_config(folder)))
    if model.config.quantization is not None:
        return None
    stored = safetensors.open_checkpoint(folder)
    cast = [slot for slot in model.slots() if not slot.pieces[0].param.endswith(KEPT_AS_STORED)]
    found = {stored[slot.name].dtype for slot in cast if slot.name in stored}
    return found.pop() if len(found) == 1 else None


def _own_dtype(config: ModelConfig, plain: list[Slot], stored: dict[str, StoredTensor]) -> torch.dtype:
    """The dtype with the most bytes; other tensors are cast, because a step cannot mix dtypes. In a quantized
    checkpoint few plain tensors are left to count, so the dtype in config.json, if any, takes precedence."""
    hf = config.hf or {}
    named = getattr(torch, str(hf.get("dtype") or hf.get("torch_dtype")), None)
    if config.quantization is not None and named in safetensors.FLOATS:
        return cast(torch.dtype, named)
    sizes: Counter[torch.dtype] = Counter()
    for slot in plain:
        tensor = stored[slot.name]
        sizes[tensor.dtype] += tensor.stop - tensor.start
    return sizes.most_common(1)[0][0]


def _check(model: Decoder, table: list[Slot], stored: dict[str, StoredTensor], folder: Path) -> None:
    """Raises an error that lists the differences unless names and shapes match exactly."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    expected = {slot.name: slot.shape_for(parameters) for slot in table}
    ignored = family_of(model.config.family).ignored(model.config)
    extra = [name for name in stored if name not in expected]
    dropped = {name for name in extra if any(re.search(pattern, name) for pattern in ignored)}
    if model.config.tied and "lm_head.weight" in extra:
        _check_tied(stored, folder)
        dropped.add("lm_head.weight")
    different = safetensors.differences(
        expected, {n: tensor for n, tensor in stored.items() if n not in dropped}
    )
    if different:
        raise ModelError(
            f"{folder} does not match a {model.config.family} model of its config.json. {different}"
        )


def _check_tied(stored: dict[str, StoredTensor], folder: Path) -> None:
    head, embed = stored["lm_head.weight"], stored.get("model.embed_tokens.weight")
    if embed is None or head.shape != embed.shape or not torch.equal(head.mapped(), embed.mapped()):
        raise ModelError(
            f"{folder}: config.json ties lm_head.weight to the embedding, yet the two differ; "
            "set tie_word_embeddings to false"
        )


def _fill(
    model: Decoder,
    table: list[Slot],
    stored: dict[str, StoredTensor],
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
) -> None:
    held = {piece.param for slot in table for piece in slot.pieces}
    parameters = {name: each for name, each in model.named_parameters() if name in held}
    mapped = _mappable(table, stored, parameters, dtype) if device.type == "cpu" else {}
    tensors = dict(mapped)
    for name, parameter in parameters.items():
        if name not in mapped:
            target = _stored_dtype(name, table, stored) if name.endswith(KEPT_AS_STORED) else dtype
            tensors[name] = torch.empty(parameter.shape, dtype=target, device=device)
    for slot in table:
        source = stored[slot.name]
        if not all(piece.param in mapped for piece in slot.pieces):
            _copy(slot, source, tensors)
        progress(source.stop - source.start)
    for name, tensor in tensors.items():
        _replace(model, name, nn.Parameter(tensor, requires_grad=parameters[name].requires_grad))
    model.tie()


def _mappable(
    table: list[Slot],
    stored: dict[str, StoredTensor],
    parameters: dict[str, nn.Parameter],
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Parameters that equal, byte for byte, contiguous rows of one stored tensor."""
    mapped = {}
    for slot in table:
        source = stored[slot.name]
        for piece in slot.pieces:
            kept = source.dtype == dtype or piece.param.endswith(KEPT_AS_STORED)
            if not kept or not source.aligned:
                continue
            region = piece.theirs(source.mapped())
            whole = piece.at is None and not piece.transposed and region.is_contiguous()
            if whole and region.shape == parameters[piece.param].shape:
                mapped[piece.param] = region
    return mapped


def _stored_dtype(name: str, table: list[Slot], stored: dict[str, StoredTensor]) -> torch.dtype:
    return next(stored[slot.name].dtype for slot in table for piece in slot.pieces if piece.param == name)


def _copy(slot: Slot, source: StoredTensor, parameters: dict[str, Tensor]) -> None:
    if len(slot.pieces) == 1 and slot.pieces[0].into is None:
        source.read_into(slot.pieces[0].ours(parameters))
        return
    whole = source.mapped()
    for piece in slot.pieces:
        piece.ours(parameters).copy_(piece.theirs(whole))


def _replace(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, parameter)


def save(
    model: Decoder,
    folder: str | Path,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: Progress | None = None,
) -> None:
    """Write config.json and safetensors in the layout of transformers. The folder is written atomically."""
    needed = sum(parameter.nbytes for parameter in model.parameters())
    with atomic_dir(Path(folder), needed=needed) as partial:
        save_into(model, partial, max_shard_bytes, progress)


def save_into(
    model: Decoder, folder: Path, max_shard_bytes: int = MAX_SHARD_BYTES, progress: Progress | None = None
) -> None:
    """Like `save`, into an existing folder; the caller is responsible for atomicity. A model whose layers are quantized
    in memory only, under a LoRA, is written merged and dequantized, weight by weight."""
    tensors = merged_outgoing(model) if is_quantized_base(model) else outgoing(model)
    config = dict(model.config.hf or {})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write(folder, tensors, max_shard_bytes, progress or (lambda count: None))


def _shown(folder: Path) -> str:
    """The folder of a model of the Hugging Face Hub is named by its commit."""
    found = repo_of_snapshot(folder)
    return folder.name if found is None else found[0]
