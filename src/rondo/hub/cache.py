"""The Hugging Face cache on this machine, shared with transformers, vLLM and other programs.

    models--ORG--NAME/refs/main             the commit of a branch or tag
    models--ORG--NAME/blobs/<digest>        the content of a file, named by its SHA-256 or its Git hash
    models--ORG--NAME/snapshots/<commit>/   links to the contents, under the names of the files

Reading the cache imports no `huggingface_hub`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from rondo.base.errors import StorageError
from rondo.base.storage.paths import path_of
from rondo.hub.names import HubName, Kind

SHORTEST_COMMIT = 7
LISTINGS = ".rondo"
"""Folder in a repository's folder with the file lists of its commits, one JSON file a commit."""


@dataclass(frozen=True)
class Snapshot:
    """One commit of a repository in the cache."""

    name: str
    """`ORG/NAME` for the branch main, else `ORG/NAME@revision`: the name that resolves to `path`."""
    path: Path
    commit: str
    disk_bytes: int
    pulled: float
    """Time of the download, in seconds since 1970."""


def hub_cache() -> Path:
    """The folder that `huggingface_hub` uses, from the same variables."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return path_of(named, "HF_HUB_CACHE").absolute()
    home = os.environ.get("HF_HOME")
    if not home:
        home = f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return path_of(home, "HF_HOME").absolute() / "hub"


def is_offline() -> bool:
    return any(
        os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def repo_folder(name: HubName) -> Path:
    return hub_cache() / f"{name.kind}s--{name.repo.replace('/', '--')}"


def cached_commit(name: HubName) -> str | None:
    """The commit of the revision as of the last download: a branch, a tag, or the beginning of a commit."""
    folder = repo_folder(name)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (folder / "refs" / name.revision).read_text("utf-8").strip()
    if len(name.revision) < SHORTEST_COMMIT:
        return None
    found = [path.name for path in _entries(folder / "snapshots") if path.name.startswith(name.revision)]
    return found[0] if len(found) == 1 else None


def snapshot_folder(name: HubName, commit: str) -> Path:
    return repo_folder(name) / "snapshots" / commit


def repo_of_snapshot(path: Path) -> tuple[str, str] | None:
    """(`ORG/NAME`, commit) of a snapshot's folder or of a file in it; None for any other path."""
    folder = _snapshot_of(path)
    if folder is None:
        return None
    return folder.parent.parent.name.removeprefix("models--").replace("--", "/", 1), folder.name


def _snapshot_of(path: Path) -> Path | None:
    return next(
        (
            each
            for each in (path, *path.parents)
            if each.parent.name == "snapshots" and each.parent.parent.name.startswith("models--")
        ),
        None,
    )


def snapshots(kind: Kind = "model") -> list[Snapshot]:
    """All commits in the cache, by name."""
    found = []
    for repo in _entries(hub_cache()):
        prefix, mark, text = repo.name.partition("--")
        if prefix == f"{kind}s" and mark:
            found += _snapshots_of(repo, text.replace("--", "/", 1))
    return sorted(found, key=lambda each: each.name)


def remove_snapshot(path: Path) -> None:
    """Removes a commit from the cache: its links, the branches and tags that point to it, and every content that no
    other commit of the repository uses. Of a commit with several GGUF files, `path` may be one of them."""
    folder = _snapshot_of(path) or path
    repo = folder.parent.parent
    try:
        path.unlink() if path != folder else shutil.rmtree(folder)
        if not any(file.is_file() for file in folder.rglob("*")):
            for ref in _refs(repo, folder.name):
                (repo / "refs" / ref).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
        used = {os.path.realpath(file) for file in (repo / "snapshots").rglob("*") if file.is_file()}
        if not used:
            shutil.rmtree(repo)
            return
        if not folder.exists():
            (repo / LISTINGS / f"{folder.name}.json").unlink(missing_ok=True)
        for blob in _entries(repo / "blobs"):
            if os.path.realpath(blob) not in used:
                blob.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"Cannot remove {folder}: {error.strerror}. Check the permissions of {hub_cache()}."
        ) from error


def _snapshots_of(repo: Path, name: str) -> list[Snapshot]:
    found = []
    for folder in _entries(repo / "snapshots"):
        with contextlib.suppress(OSError):  # removed meanwhile
            refs = _refs(repo, folder.name)
            label = "" if "main" in refs else f"@{min(refs, default=folder.name[:12])}"
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            found.append(Snapshot(name + label, folder, folder.name, size, folder.stat().st_mtime))
    return found


def _refs(repo: Path, commit: str) -> list[str]:
    folder = repo / "refs"
    files = [file for file in folder.rglob("*") if file.is_file()]
    return [str(file.relative_to(folder)) for file in files if file.read_text("utf-8").strip() == commit]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"Cannot read {folder}: {error.strerror}. Check its permissions.") from error
