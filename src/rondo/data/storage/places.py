"""Input files and output folders, on the local disk or in an object store."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from rondo.base.errors import NotFound, StorageError, Unavailable
from rondo.base.storage.files import atomic_write, move_file
from rondo.base.storage.paths import path_of
from rondo.base.storage.remote import is_remote, store_of, translated
from rondo.hub.datasets import ensure_dataset
from rondo.hub.names import HubName, hub_name
from rondo.hub.transfer import Report

AHEAD, BUFFER = 8 << 20, 1 << 16
"""Bytes requested from a store at once, and bytes returned in one read."""


@dataclass(frozen=True)
class SourceFile:
    name: str
    """Path or URL of the file."""
    size: int
    stamp: str
    """Version of the content: the store's ETag, or the time of the last change."""


def find_files(source: str, suffixes: Sequence[str], report: Report | None = None) -> list[SourceFile]:
    """A file, or the files of a folder or of a split of a data set of the Hugging Face Hub that end in one of
    `suffixes`, in name order. Missing files of the Hub are downloaded; `report` shows the progress."""
    if (name := hub_dataset(source, suffixes)) is not None:
        return [_local_file(path) for path in _from_hub(name, suffixes, report)]
    found = _remote_files(source, suffixes) if is_remote(source) else _local_files(source, suffixes)
    if not found:
        raise NotFound(
            f"no data at {source}: name a .jsonl, .txt or .parquet file, or a folder that holds some",
            param="data",
        )
    return found


def hub_dataset(source: str, suffixes: Sequence[str]) -> HubName | None:
    """The data set of the Hugging Face Hub that a source names; None if it is a file, a folder or a URL."""
    if is_remote(source) or source.endswith(tuple(suffixes)) or path_of(source, "data").exists():
        return None
    return hub_name(source, "dataset")


def _from_hub(name: HubName, suffixes: Sequence[str], report: Report | None) -> list[Path]:
    try:
        return ensure_dataset(name, suffixes, report)
    except (NotFound, Unavailable) as error:
        raise type(error)(
            f"There is no file or folder {name.repo} here. {error.message}", param="data", code=error.code
        ) from error


def open_file(name: str) -> BinaryIO:
    if is_remote(name):
        store, path = store_of(name)
        with translated(name):
            file = store.open(path, "rb", cache_type="readahead", block_size=AHEAD)
            return cast(BinaryIO, io.BufferedReader(file, BUFFER))
    try:
        return open(name, "rb")
    except OSError as error:
        raise StorageError(f"Cannot read {name}: {error.strerror}.") from error


def _local_files(source: str, suffixes: Sequence[str]) -> list[SourceFile]:
    path = path_of(source, "data")
    paths = sorted(p for p in path.iterdir() if p.name.endswith(tuple(suffixes))) if path.is_dir() else [path]
    if not all(p.is_file() for p in paths):
        return []
    return [_local_file(each) for each in paths]


def _local_file(path: Path) -> SourceFile:
    stat = path.stat()
    return SourceFile(str(path), stat.st_size, str(stat.st_mtime_ns))


def _remote_files(source: str, suffixes: Sequence[str]) -> list[SourceFile]:
    store, path = store_of(source)
    scheme = source.partition("://")[0]
    with translated(source):
        info = store.info(path)
        if info["type"] == "directory":
            listed = store.ls(path, detail=True)
            infos = [
                each for each in listed if each["type"] == "file" and each["name"].endswith(tuple(suffixes))
            ]
        else:
            infos = [info]
    return sorted(
        (SourceFile(f"{scheme}://{each['name']}", int(each["size"]), _stamp(each)) for each in infos),
        key=lambda file: file.name,
    )


def _stamp(info: dict[str, Any]) -> str:
    return next((str(info[name]) for name in ("ETag", "etag", "mtime", "created") if info.get(name)), "")


class OutputFolder(Protocol):
    """An output folder. Files are written atomically."""

    name: str

    def read(self, name: str) -> bytes | None:
        """The file's content; None if there is no such file."""

    def read_all(self, folder: str) -> dict[str, bytes]:
        """The files of a subfolder, by their names in it."""

    def write(self, name: str, data: bytes) -> None: ...

    def put(self, name: str, local: Path) -> None:
        """Moves a finished file into the folder."""

    def names(self, folder: str = "") -> list[str]: ...

    def remove(self, folder: str = "") -> None: ...


def folder_of(name: str) -> OutputFolder:
    return RemoteFolder(name.rstrip("/")) if is_remote(name) else LocalFolder(path_of(name, "--out"))


class LocalFolder:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.name = str(path)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"Cannot read {self.path / name}: {error.strerror}.") from error

    def read_all(self, folder: str) -> dict[str, bytes]:
        files = [name for name in self.names(folder) if (self.path / folder / name).is_file()]
        return {name: self.read(f"{folder}/{name}") or b"" for name in files}

    def write(self, name: str, data: bytes) -> None:
        atomic_write(self.path / name, data)

    def put(self, name: str, local: Path) -> None:
        move_file(local, self.path / name)

    def names(self, folder: str = "") -> list[str]:
        path = self.path / folder
        return sorted(file.name for file in path.iterdir()) if path.is_dir() else []

    def remove(self, folder: str = "") -> None:
        with contextlib.suppress(FileNotFoundError):
            path = self.path / folder
            shutil.rmtree(path) if path.is_dir() else path.unlink()


class RemoteFolder:
    def __init__(self, url: str) -> None:
        self.name = url
        self._store, self._path = store_of(url)

    def read(self, name: str) -> bytes | None:
        with translated(f"{self.name}/{name}"):
            try:
                return bytes(self._store.cat_file(f"{self._path}/{name}"))
            except FileNotFoundError:
                return None

    def read_all(self, folder: str) -> dict[str, bytes]:
        paths = [f"{self._path}/{folder}/{name}" for name in self.names(folder)]
        if not paths:
            return {}
        with translated(f"{self.name}/{folder}"):
            found = self._store.cat(paths, on_error="raise")
        return {name.rpartition("/")[2]: bytes(data) for name, data in found.items()}

    def write(self, name: str, data: bytes) -> None:
        with translated(f"{self.name}/{name}"):
            self._make_parent(name)
            self._store.pipe_file(f"{self._path}/{name}", data)

    def put(self, name: str, local: Path) -> None:
        with translated(f"{self.name}/{name}"):
            self._make_parent(name)
            self._store.put_file(str(local), f"{self._path}/{name}")
        local.unlink()

    def names(self, folder: str = "") -> list[str]:
        with translated(self.name):
            try:
                found = self._store.ls(f"{self._path}/{folder}".rstrip("/"), detail=False)
            except FileNotFoundError:
                return []
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def remove(self, folder: str = "") -> None:
        with translated(self.name), contextlib.suppress(FileNotFoundError):
            self._store.rm(f"{self._path}/{folder}".rstrip("/"), recursive=True)

    def _make_parent(self, name: str) -> None:
        """Creates the parent folder for file:// URLs only. An object store has no folders, and a missing bucket is an
        error."""
        if self.name.startswith("file://"):
            self._store.makedirs(f"{self._path}/{name}".rpartition("/")[0], exist_ok=True)
