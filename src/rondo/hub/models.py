"""Models by name: found in the Hugging Face cache, or downloaded into it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from rondo.base.errors import ModelError, Unavailable
from rondo.hub.cache import cached_commit, snapshot_folder
from rondo.hub.listing import HubFile, Listing, cached_listing, request_listing
from rondo.hub.names import HubName
from rondo.hub.transfer import Report, fetch

Check = Callable[[Path], None]

CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
COMPANION_SUFFIXES = frozenset({"", ".json", ".jinja", ".model", ".txt", ".md", ".tiktoken"})
COMPANION_FOLDERS = ("additional_chat_templates",)
FOREIGN_INDEXES = (".bin.index.json", ".fp16.safetensors.index.json")
LARGEST_COMPANION = 256 << 20


def ensure_model(name: HubName, report: Report | None = None, check: Check | None = None) -> Path:
    """The folder of a model: from the cache without any request if it is complete there, else downloaded."""
    found = cached_model(name)
    if found is not None:
        return found
    usable = _usable(name)
    try:
        return pull_model(name, report, check)
    except Unavailable:
        if usable is None:
            raise
        return usable


def pull_model(name: HubName, report: Report | None = None, check: Check | None = None) -> Path:
    """Downloads the revision's current commit, as far as it is not in the cache. `check` validates a folder that has
    the config only, before the weights are downloaded."""
    listing = request_listing(name)
    folder = fetch(listing, _headers(listing), complete=False)
    if check is not None:
        check(folder)
    return fetch(listing, model_files(listing), report)


def pull_config(name: HubName) -> Path:
    """A folder with the config and the index of the weights only, for the planner."""
    commit = cached_commit(name)
    if commit is not None and (snapshot_folder(name, commit) / CONFIG).is_file():
        return snapshot_folder(name, commit)
    listing = request_listing(name)
    return fetch(listing, _headers(listing), complete=commit is None)


def pull_tokenizer(name: HubName) -> Path:
    """A folder with everything but the weights, for work with the tokenizer."""
    commit = cached_commit(name)
    if commit is not None and has_tokenizer(snapshot_folder(name, commit)):
        return snapshot_folder(name, commit)
    listing = request_listing(name)
    companions = [file for file in listing.files if _is_companion(file)]
    return fetch(listing, companions, complete=commit is None)


def cached_model(name: HubName) -> Path | None:
    """The complete model in the cache. A cache filled by another program counts as complete with a config, all weights
    and a tokenizer."""
    listing = cached_listing(name)
    if listing is None:
        usable = _usable(name)
        return usable if usable is not None and has_tokenizer(usable) else None
    folder = snapshot_folder(name, listing.commit)
    if not listing.is_cached(_headers(listing)):
        return None
    return folder if listing.is_cached(model_files(listing)) else None


def _headers(listing: Listing) -> list[HubFile]:
    """The config, and the index if there is one."""
    if listing.file(CONFIG) is None:
        raise _no_model(listing)
    return [file for path in (CONFIG, INDEX) if (file := listing.file(path)) is not None]


def has_tokenizer(folder: Path) -> bool:
    return any((folder / file).is_file() for file in TOKENIZERS)


def has_weights(folder: Path) -> bool:
    """Whether the folder has a config and all weights."""
    if not (folder / CONFIG).is_file():
        return False
    if (folder / INDEX).is_file():
        return all((folder / shard).is_file() for shard in _shards(folder / INDEX))
    return (folder / SINGLE).is_file()


def model_files(listing: Listing) -> list[HubFile]:
    """The files that serving and training need: config, tokenizer, chat templates, licence, and the weights once, as
    safetensors. The index must have been fetched, if there is one."""
    companions = [file for file in listing.files if _is_companion(file)]
    index = snapshot_folder(listing.name, listing.commit) / INDEX
    shards = _shards(index) if listing.file(INDEX) else [SINGLE]
    weights = [listing.file(shard) for shard in shards]
    if None in weights:
        raise _no_weights(listing, [shard for shard, file in zip(shards, weights) if file is None])
    return companions + [file for file in weights if file is not None]


def _is_companion(file: HubFile) -> bool:
    path = PurePosixPath(file.path)
    inside = str(path.parent) in (".", *COMPANION_FOLDERS)
    plain = not path.name.startswith(".") and not path.name.endswith(FOREIGN_INDEXES)
    return inside and plain and path.suffix in COMPANION_SUFFIXES and file.size <= LARGEST_COMPANION


def _shards(index: Path) -> list[str]:
    try:
        return sorted({str(shard) for shard in json.loads(index.read_text("utf-8"))["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{index} is broken: it has no readable weight_map ({error}). Remove it and pull again."
        ) from None


def _usable(name: HubName) -> Path | None:
    """The folder in the cache, if it has at least config and weights."""
    commit = cached_commit(name)
    if commit is None:
        return None
    folder = snapshot_folder(name, commit)
    return folder if has_weights(folder) else None


def _no_model(listing: Listing) -> ModelError:
    name, paths = listing.name, {file.path for file in listing.files}
    if "adapter_config.json" in paths:
        return ModelError(
            f"{name} is an adapter, not a model: pull its base model, and load the adapter from a folder."
        )
    if any(path.endswith(".gguf") for path in paths):
        return _only_gguf(listing)
    return ModelError(f"{name} has no {CONFIG}, so it is not a language model in the format of transformers.")


def _no_weights(listing: Listing, missing: list[str]) -> ModelError:
    name, suffixes = listing.name, {PurePosixPath(file.path).suffix for file in listing.files}
    if listing.file(INDEX) is not None:
        return ModelError(
            f"{INDEX} of {name} names {', '.join(missing[:3])}, which the repository does not contain. "
            f"Choose another revision: {name.repo}@REVISION."
        )
    if ".gguf" in suffixes and ".bin" not in suffixes:
        return _only_gguf(listing)
    if suffixes & {".bin", ".pt", ".pth"}:
        return ModelError(
            f"{name} has its weights as PyTorch pickles only, which are not loaded. Choose a revision with safetensors "
            f"(pull requests of the Hub's converter: {name.repo}@refs/pr/1), or convert it with transformers and run "
            "`rondo model import FOLDER`."
        )
    return ModelError(
        f"{name} has no weights in safetensors format ({SINGLE}). Choose another model or revision."
    )


def _only_gguf(listing: Listing) -> ModelError:
    file = next(file.path for file in listing.files if file.path.endswith(".gguf"))
    return ModelError(
        f"{listing.name} has its weights as GGUF only. Pull the original model, which usually has the same name "
        f"without -GGUF; or run `hf download {listing.name.repo} {file}` and give the path of the file."
    )
