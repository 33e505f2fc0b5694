"""Data sets by name: which files of a repository are a split, found in the cache or downloaded into it.

The splits are those of the `datasets` library: the configurations in the head of README.md, else names of files and
folders (`train`, `validation`, `test`); files without such a name are the split `train`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from rondo.base.errors import MissingExtra, NotFound
from rondo.hub.cache import snapshot_folder
from rondo.hub.listing import HubFile, Listing, cached_listing, request_listing
from rondo.hub.names import HubName
from rondo.hub.transfer import Report, fetch

CARD = "README.md"
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
METADATA = frozenset(
    {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json"}
)
CONVERTED = "refs/convert/parquet"
"""Revision with the Hub's own conversion of a data set to Parquet."""


def ensure_dataset(name: HubName, suffixes: Sequence[str], report: Report | None = None) -> list[Path]:
    """The files of the split, in name order: from the cache without any request if they are complete there."""
    listing = cached_listing(name)
    if listing is not None and _has_card(listing):
        files = dataset_files(listing, suffixes)
        if listing.is_cached(files):
            return _paths(listing, files)
    return pull_dataset(name, suffixes, report)


def pull_dataset(name: HubName, suffixes: Sequence[str], report: Report | None = None) -> list[Path]:
    """Downloads the files of the split at the revision's current commit, as far as they are not in the cache."""
    listing = request_listing(name)
    if (card := listing.file(CARD)) is not None:
        fetch(listing, [card], complete=False)
    files = dataset_files(listing, suffixes)
    if any(file.path.endswith(".parquet") for file in files) and find_spec("pyarrow") is None:
        raise MissingExtra("pyarrow", "data")  # before gigabytes are downloaded
    fetch(listing, files, report)
    return _paths(listing, files)


def dataset_files(listing: Listing, suffixes: Sequence[str]) -> list[HubFile]:
    """The files of the name's split. README.md must have been fetched, if there is one."""
    readable = [file for file in listing.files if _is_data(file.path, suffixes)]
    if not readable:
        raise _unreadable(listing, suffixes)
    configuration, _, split = listing.name.part.rpartition("/")
    configurations = _configurations(listing)
    if configurations:
        splits = _splits_of(_choose(listing, configurations, configuration), readable)
    else:
        inside = [
            file for file in readable if file.path.startswith(f"{configuration}/" if configuration else "")
        ]
        splits = _splits_by_name(inside)
    found = splits.get(split or "train", [])
    if not found and not split and len(splits) == 1:
        found = next(iter(splits.values()))
    if not found:
        names = ", ".join(
            f"{listing.name}:{configuration}{'/' if configuration else ''}{each}" for each in splits
        )
        raise NotFound(
            f"{listing.name} has no split {listing.name.part or 'train'!r}. Splits: {names or 'none'}.",
            param="data",
        )
    return _of_one_format(found)


def _has_card(listing: Listing) -> bool:
    card = listing.file(CARD)
    return card is None or listing.is_cached([card])


def _paths(listing: Listing, files: list[HubFile]) -> list[Path]:
    folder = snapshot_folder(listing.name, listing.commit)
    return sorted(folder / file.path for file in files)


def _is_data(path: str, suffixes: Sequence[str]) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.split("/"))
    return path.endswith(tuple(suffixes)) and not hidden and PurePosixPath(path).name not in METADATA


def _configurations(listing: Listing) -> list[Mapping[str, Any]]:
    """The configurations with files in the head of README.md."""
    card = snapshot_folder(listing.name, listing.commit) / CARD
    if not card.is_file():
        return []
    from huggingface_hub import metadata_load

    try:
        found = metadata_load(card)
    except Exception:  # a card with broken metadata is a text
        return []
    configs = found.get("configs") if isinstance(found, dict) else None
    listed = configs if isinstance(configs, list) else []
    return [
        each for each in listed if isinstance(each, dict) and (each.get("data_files") or each.get("data_dir"))
    ]


def _choose(listing: Listing, configurations: list[Mapping[str, Any]], wanted: str) -> Mapping[str, Any]:
    """The named configuration; by default the only one, the one marked as default, or the one of that name."""
    by_name = {str(each.get("config_name", "default")): each for each in configurations}
    if wanted:
        chosen = by_name.get(wanted)
    elif len(by_name) == 1:
        chosen = next(iter(by_name.values()))
    else:
        chosen = next(
            (each for each in configurations if each.get("default") is True), by_name.get("default")
        )
    if chosen is None:
        names = ", ".join(f"{listing.name}:{each}/train" for each in list(by_name)[:8])
        more = " ..." if len(by_name) > 8 else ""
        problem = f"has no configuration {wanted!r}" if wanted else "has several configurations"
        raise NotFound(f"{listing.name} {problem}. Choose one: {names}{more}", param="data")
    return chosen


def _splits_of(configuration: Mapping[str, Any], files: list[HubFile]) -> dict[str, list[HubFile]]:
    folder = str(configuration.get("data_dir") or "").strip("./")
    inside = [file for file in files if not folder or file.path.startswith(f"{folder}/")]
    listed = configuration.get("data_files")
    if not listed:
        return _splits_by_name(inside)
    if isinstance(listed, dict):
        listed = [{"split": split, "path": path} for split, path in listed.items()]
    elif isinstance(listed, str) or not any(isinstance(each, dict) for each in listed):
        listed = [{"split": "train", "path": listed}]
    splits: dict[str, list[HubFile]] = {}
    for each in listed:
        paths = each.get("path") or []
        patterns = [_pattern(str(path), folder) for path in ([paths] if isinstance(paths, str) else paths)]
        matching = [file for file in inside if any(pattern.fullmatch(file.path) for pattern in patterns)]
        splits.setdefault(str(each.get("split", "train")), []).extend(matching)
    return {split: found for split, found in splits.items() if found}


def _pattern(path: str, folder: str) -> re.Pattern[str]:
    from fsspec.utils import glob_translate

    path = path.removeprefix("./")
    return re.compile(glob_translate(f"{folder}/{path}" if folder and not path.startswith(folder) else path))


def _splits_by_name(files: list[HubFile]) -> dict[str, list[HubFile]]:
    splits: dict[str, list[HubFile]] = {}
    for file in files:
        splits.setdefault(_split_in(file.path) or "", []).append(file)
    plain = splits.pop("", [])
    return splits or ({"train": plain} if plain else {})


def _split_in(path: str) -> str | None:
    words = re.split(r"[^a-z]+", path.lower())
    return next((split for split, names in SPLITS.items() for word in words if word in names), None)


def _of_one_format(files: list[HubFile]) -> list[HubFile]:
    """The files of the most frequent format: a repository may have the same records in several."""
    unique = {file.path: file for file in files}
    formats = Counter(PurePosixPath(path).suffix for path in unique)
    chosen = formats.most_common(1)[0][0]
    return [file for path, file in unique.items() if PurePosixPath(path).suffix == chosen]


def _unreadable(listing: Listing, suffixes: Sequence[str]) -> NotFound:
    name = listing.name
    converted = (
        "" if name.revision == CONVERTED else f" The Hub may have a conversion: {name.repo}@{CONVERTED}."
    )
    return NotFound(
        f"{name} has no files in a readable format ({', '.join(suffixes)}).{converted}", param="data"
    )
