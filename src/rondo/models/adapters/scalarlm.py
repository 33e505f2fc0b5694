"""Import of ScalarLM's `checkpoint_N.pt`, which has the trained tensors by their names in transformers.

A LoRA becomes an adapter in PEFT's layout. A Tokenformer job trains attention, norms and embeddings beside the adapter:
it becomes a copy of the base with those tensors, and an adapter over it. Full weights become a model. The file is a
pickle: only tensors and plain values are read from it.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rondo.base.errors import InvalidRequest, ModelError, NotFound
from rondo.base.storage.files import atomic_dir, refuse_existing, write_json
from rondo.base.storage.paths import path_of
from rondo.jobs.summary import LINEAGE
from rondo.models.adapters import files, read_adapter
from rondo.models.families import parse
from rondo.models.files.checkpoint import MAX_SHARD_BYTES, build
from rondo.models.files.headers import read_config
from rondo.models.files.mapping import Outgoing
from rondo.models.files.safetensors import StoredTensor, open_checkpoint
from rondo.models.files.safetensors_write import write
from rondo.models.store import place, resolve

LORA, TOKENFORMER = ".lora_", ".tokenformer_"
PREFIXES = ("", "model.", "base_model.model.", "model.model.")
"""Prefixes of names by the wrappers under which ScalarLM saved a model."""
WEIGHTS = (".safetensors", ".safetensors.index.json")


def import_checkpoint(
    source: str | Path, name: str, base: str, *, alpha: float | None = None, replace: bool = False
) -> Path:
    """The folder of the imported adapter or model, `RONDO_HOME/models/NAME`."""
    path, target = path_of(source, "source"), place(name)
    refuse_existing(target, replace)
    content, folder = _read(path), resolve(base)
    base_tensors = open_checkpoint(folder)
    tensors = _named(content["model_state_dict"], base_tensors, path)
    adapter = {key: tensor for key, tensor in tensors.items() if LORA in key or TOKENFORMER in key}
    changed = {key: tensor for key, tensor in tensors.items() if key not in adapter}
    if changed:
        whole = place(f"{name}-base") if adapter else target
        refuse_existing(whole, replace)
        _write_model(folder, whole, base_tensors, changed, path, replace=replace)
        folder = whole
    if adapter:
        config = (
            _lora(adapter, content, path, alpha)
            if any(LORA in key for key in adapter)
            else _tokenformer(adapter)
        )
        shutil.rmtree(target, ignore_errors=True)
        own = {f"{files.PREFIX}{key.replace('.default', '')}": tensor for key, tensor in adapter.items()}
        files.write(target, config | {"base_model_name_or_path": str(folder)}, own)
        try:
            read_adapter(build(parse(read_config(folder))), target, device=torch.device("cpu"))
        except ModelError:
            shutil.rmtree(target, ignore_errors=True)
            raise
    write_json(target / LINEAGE, {"kind": "sft", "parent": base, "score": {}, "step": content.get("step")})
    return target


def _read(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise NotFound(f"There is no file {path}.", param="source") from None
    except (pickle.UnpicklingError, RuntimeError, OSError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"{path} is not a checkpoint of tensors and plain values: {reason}", param="source"
        ) from error
    state = content.get("model_state_dict") if isinstance(content, dict) else None
    if (
        not isinstance(state, dict)
        or not state
        or not all(isinstance(each, Tensor) for each in state.values())
    ):
        raise ModelError(f"{path} has no model_state_dict: it is no checkpoint of ScalarLM.", param="source")
    return dict(content)


def _named(state: Mapping[str, Tensor], base: Mapping[str, StoredTensor], path: Path) -> dict[str, Tensor]:
    """The tensors by the base's own names, without the prefixes of wrappers."""
    modules = {name.rpartition(".")[0] for name in base}

    def known(name: str) -> bool:
        module = name.partition(LORA)[0].partition(TOKENFORMER)[0]
        return name in base or module in modules or any(each.startswith(f"{module}.") for each in modules)

    def stripped(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): tensor for name, tensor in state.items()}

    best = max(map(stripped, PREFIXES), key=lambda names: sum(map(known, names)))
    if wrong := [name for name in best if not known(name)]:
        raise ModelError(
            f"{path} does not fit its base: the base has no {', '.join(sorted(wrong)[:5])}. Give the model on which it "
            "was trained.",
            param="base",
        )
    return best


def _lora(
    adapter: Mapping[str, Tensor], content: Mapping[str, Any], path: Path, alpha: float | None
) -> dict[str, Any]:
    told = content.get("metadata") or {}
    alpha = alpha or told.get("lora_alpha")
    if alpha is None:
        raise InvalidRequest(
            f"{path} does not contain lora_alpha: give --alpha, by default 32 in ScalarLM.", param="--alpha"
        )
    ranks = {tensor.shape[0] for key, tensor in adapter.items() if ".lora_A" in key}
    if len(ranks) != 1:
        raise ModelError(f"{path} has LoRA tensors of several ranks: {sorted(ranks)}.", param="source")
    return {
        "peft_type": "LORA",
        "r": ranks.pop(),
        "lora_alpha": alpha,
        "use_rslora": bool(told.get("use_rslora", False)),
        "target_modules": sorted({key.partition(LORA)[0] for key in adapter}),
        "lora_dropout": 0.0,
        "bias": "none",
    }


def _tokenformer(adapter: Mapping[str, Tensor]) -> dict[str, Any]:
    heads = next(tensor.shape[0] for key, tensor in adapter.items() if key.endswith("_k"))
    rank = next(tensor.shape[0] for key, tensor in adapter.items() if key.endswith("_p"))
    return {"peft_type": "TOKENFORMER", "r": rank, "heads": heads}


def _write_model(
    base: Path,
    target: Path,
    stored: Mapping[str, StoredTensor],
    changed: Mapping[str, Tensor],
    path: Path,
    *,
    replace: bool,
) -> None:
    """A copy of the base with other values of some tensors."""
    for name, tensor in changed.items():
        if name not in stored or tuple(stored[name].shape) != tuple(tensor.shape):
            raise ModelError(f"{path}: {name} does not fit the base.", param="base")

    def make(name: str) -> Tensor:
        own = stored[name]
        if name in changed:
            return changed[name].to(own.dtype).contiguous()
        tensor = torch.empty(own.shape, dtype=own.dtype)
        own.read_into(tensor)
        return tensor

    with atomic_dir(target, replace=replace) as folder:
        for file in base.iterdir():
            if file.is_file() and not file.name.endswith(WEIGHTS) and file.name != LINEAGE:
                shutil.copyfile(file, folder / file.name)
        outgoing = [
            Outgoing(name, tuple(own.shape), own.dtype, partial(make, name)) for name, own in stored.items()
        ]
        write(folder, outgoing, MAX_SHARD_BYTES, lambda count: None)
