"""Models and adapters by name: found in the Hugging Face cache, or downloaded into it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from rondo.base.errors import ModelError, RondoError, Unavailable
from rondo.base.units import human_bytes
from rondo.hub.cache import cached_commit, snapshot_folder
from rondo.hub.gguf import choose_gguf, gguf_files, is_gguf_model
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
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")


def ensure_model(name: HubName, report: Report | None = None, check: Check | None = None) -> Path:
    """The folder or GGUF file of a model: from the cache without any request if it is complete, else downloaded."""
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


def pull_model(
    name: HubName, report: Report | None = None, check: Check | None = None, *, adapters: bool = False
) -> Path:
    """Downloads the revision's current commit, as far as it is not in the cache. `check` validates a folder that has
    the config only, before the weights are downloaded; of a GGUF file it validates the complete file. With `adapters`,
    the repository may be an adapter."""
    listing = request_listing(name)
    if adapters and _is_adapter(listing):
        return _pull_adapter(listing, report)
    if _is_gguf(listing):
        file = choose_gguf(name, listing.files)
        path = fetch(listing, [file], report) / file.path
        if check is not None:
            check(path)
        return path
    folder = fetch(listing, _headers(listing), complete=False)
    if check is not None:
        check(folder)
    return fetch(listing, model_files(listing), report)


def pull_config(name: HubName) -> Path:
    """A folder with the config and the index of the weights only, for the planner; or a GGUF file in the cache."""
    commit = cached_commit(name)
    if commit is not None and not name.part and (snapshot_folder(name, commit) / CONFIG).is_file():
        return snapshot_folder(name, commit)
    if (found := cached_model(name)) is not None:
        return found
    listing = request_listing(name)
    if _is_gguf(listing) and (name.part or listing.file(CONFIG) is None):
        file = choose_gguf(name, listing.files)
        raise ModelError(
            f"The sizes of {name} are in a file of {human_bytes(file.size)}: run `{name.pull}` first, or plan the "
            "original model, which usually has the same name without -GGUF."
        )
    return fetch(listing, _headers(listing), complete=commit is None)


def pull_tokenizer(name: HubName) -> Path:
    """A folder with everything but the weights, for work with the tokenizer; or a GGUF file, which has both."""
    commit = cached_commit(name)
    if commit is not None and not name.part and has_tokenizer(snapshot_folder(name, commit)):
        return snapshot_folder(name, commit)
    if (found := cached_model(name)) is not None:
        return found
    listing = request_listing(name)
    if _is_gguf(listing):
        return ensure_model(name)
    companions = [file for file in listing.files if _is_companion(file)]
    return fetch(listing, companions, complete=commit is None)


def cached_model(name: HubName) -> Path | None:
    """The complete model in the cache. A cache filled by another program counts as complete with a config, all weights
    and a tokenizer, or with the GGUF file."""
    listing = cached_listing(name)
    if listing is None:
        usable = _usable(name)
        return usable if usable is not None and (usable.is_file() or has_tokenizer(usable)) else None
    folder = snapshot_folder(name, listing.commit)
    if _is_gguf(listing):
        file = choose_gguf(name, listing.files)
        return folder / file.path if listing.is_cached([file]) else None
    if not listing.is_cached(_headers(listing)):
        return None
    return folder if listing.is_cached(model_files(listing)) else None


def ensure_adapter(name: HubName, report: Report | None = None) -> Path:
    """The folder of an adapter in PEFT's format: from the cache without any request if it is complete there, else
    downloaded."""
    commit = cached_commit(name)
    if commit is not None:
        folder = snapshot_folder(name, commit)
        if all((folder / file).is_file() for file in ADAPTER):
            return folder
    listing = request_listing(name)
    return _pull_adapter(listing, report)


def _pull_adapter(listing: Listing, report: Report | None) -> Path:
    files = [file for path in ADAPTER if (file := listing.file(path)) is not None]
    if len(files) < len(ADAPTER):
        missing = " and no ".join(path for path in ADAPTER if listing.file(path) is None)
        raise ModelError(f"{listing.name} has no {missing}, so it is not an adapter in PEFT's format.")
    return fetch(listing, files, report)


def serving_command(name: HubName, folder: Path) -> str:
    """The command that serves the adapter in the folder beside the base model that its config names."""
    try:
        config = json.loads((folder / ADAPTER[0]).read_text("utf-8"))
        base = config.get("base_model_name_or_path") or "BASE"
    except (OSError, ValueError, AttributeError):
        base = "BASE"
    return f"rondo serve {base} --lora-modules {name.repo.rpartition('/')[2]}={name}"


def _is_gguf(listing: Listing) -> bool:
    """Whether the name is of a GGUF file: its part selects one, or the repository has no other weights."""
    if listing.name.part:
        return True
    paths = [file.path for file in listing.files]
    other = any(path in (INDEX, SINGLE) or path.endswith(".bin") for path in paths)
    return not other and any(map(is_gguf_model, paths))


def _headers(listing: Listing) -> list[HubFile]:
    """The config, and the index if there is one."""
    if listing.file(CONFIG) is None:
        raise _no_model(listing)
    return [file for path in (CONFIG, INDEX) if (file := listing.file(path)) is not None]


def has_tokenizer(folder: Path) -> bool:
    return any((folder / file).is_file() for file in TOKENIZERS)


def has_model(path: Path) -> bool:
    """Whether a pulled path is a model: a GGUF file, or a folder with a config. An adapter has none."""
    return path.is_file() or (path / CONFIG).is_file()


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
    """The folder in the cache, if it has at least config and weights; or the GGUF file."""
    commit = cached_commit(name)
    if commit is None:
        return None
    folder = snapshot_folder(name, commit)
    if not name.part and has_weights(folder):
        return folder
    files = gguf_files(folder)
    try:
        return folder / choose_gguf(name, files).path if files else None
    except RondoError:
        return None


def _no_model(listing: Listing) -> ModelError:
    if _is_adapter(listing):
        return _no_model_but_adapter(listing)
    return ModelError(
        f"{listing.name} has no {CONFIG}, so it is not a language model in the format of transformers."
    )


def _no_weights(listing: Listing, missing: list[str]) -> ModelError:
    name, suffixes = listing.name, {PurePosixPath(file.path).suffix for file in listing.files}
    if listing.file(INDEX) is not None:
        return ModelError(
            f"{INDEX} of {name} names {', '.join(missing[:3])}, which the repository does not contain. "
            f"Choose another revision: {name.repo}@REVISION."
        )
    if suffixes & {".bin", ".pt", ".pth"}:
        return ModelError(
            f"{name} has its weights as PyTorch pickles only, which are not loaded. Choose a revision with safetensors "
            f"(pull requests of the Hub's converter: {name.repo}@refs/pr/1), or convert it with transformers and run "
            "`rondo model import FOLDER`."
        )
    return ModelError(
        f"{name} has no weights in safetensors format ({SINGLE}). Choose another model or revision."
    )


def _is_adapter(listing: Listing) -> bool:
    return listing.file(CONFIG) is None and listing.file(ADAPTER[0]) is not None


def _no_model_but_adapter(listing: Listing) -> ModelError:
    config = [file for file in listing.files if file.path == ADAPTER[0]]
    command = serving_command(listing.name, fetch(listing, config, complete=False))
    return ModelError(f"{listing.name} is an adapter, not a model. Serve it beside its base model: {command}")
