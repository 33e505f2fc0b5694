"""The data, or the program with its data, in a tar archive. Nothing is unpacked under its own name: members are read
in order, with bounds on their number, on all bytes and on each header, and a member that is no plain file inside the
archive's folder is an error."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import secrets
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from rondo.base.storage.files import storage_error
from rondo.gateway.training.inputs import inputs_dir
from rondo.gateway.training.scalarlm.fields import Unprocessable
from rondo.jobs.script import check_path

DATA = frozenset(["dataset.jsonlines", "dataset.jsonl"])
MOST_MEMBERS = 10_000
LARGEST_HEADER = 1 << 20
"""Bytes of an extended header, which the tar reader reads at once."""
EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
LONGEST_LINE = 64 << 20
MAGIC = b"\x1f\x8b"


CODE, PROGRAM = "ml", "ml/cray_megatron/main.py"
"""Folder of training code in an archive, and the program in it that is executed."""


@dataclass(frozen=True)
class ArchiveData:
    path: Path
    digest: str
    records: int


@dataclass(frozen=True)
class ArchiveCode:
    """Paths and hashes of the files of a program, by their names in the archive; the data set is one of them."""

    files: Mapping[str, tuple[Path, str]]


class _Bounded(io.RawIOBase):
    """A stream that ends with an error after so many bytes."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream, self._left, self._limit = stream, limit, limit

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _wrong(f"unpacked, it has more than {self._limit:,} bytes")
        return data


class _Member(tarfile.TarInfo):
    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in EXTENDED and self.size > LARGEST_HEADER:
            raise _wrong("it has a header that is too large")
        return super()._proc_member(tar)  # type: ignore[misc,no-any-return]


def content_of(archive: Path, limit: int, check_code: Callable[[], None]) -> ArchiveData | ArchiveCode:
    """The records of the archive as an input of a job, with the fields `input` and `output` under Rondo's names; or
    the files of its program, if it has one and `check_code` raises no error. `limit`: bytes of the unpacked archive.
    Nothing is stored before all members were checked."""
    try:
        with _opened(archive, limit) as tar:
            names = [name for name, member in _members(tar) if member.isfile()]
        if code := [str(name) for name in names if _is_code(name)]:
            check_code()
            _check_program(code)
        with _opened(archive, limit) as tar:
            return _code(tar) if code else _data(tar)
    except (
        tarfile.TarError,
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        UnicodeDecodeError,
        ValueError,
    ) as error:
        raise _wrong(f"it is not a complete tar or tar.gz file: {error}") from error
    except OSError as error:
        raise storage_error(archive, error) from error


@contextmanager
def _opened(archive: Path, limit: int) -> Iterator[tarfile.TarFile]:
    with archive.open("rb") as file:
        packed = file.read(2) == MAGIC
        file.seek(0)
        plain: IO[bytes] = gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[assignment]
        with tarfile.open(fileobj=_Bounded(plain, limit), mode="r|", tarinfo=_Member) as tar:
            yield tar


def _members(tar: tarfile.TarFile) -> Iterator[tuple[PurePosixPath, tarfile.TarInfo]]:
    for number, member in enumerate(tar, 1):
        if number > MOST_MEMBERS:
            raise _wrong(f"it has more than {MOST_MEMBERS:,} members")
        yield _checked(member), member


def _data(tar: tarfile.TarFile) -> ArchiveData:
    found = None
    with _new_file() as copy:
        for name, member in _members(tar):
            if str(name) not in DATA:
                continue
            if found is not None:
                raise _wrong("it has two data sets")
            content = tar.extractfile(member)
            assert content is not None  # of a plain file
            found = _converted(content, copy)
        if found is None:
            raise _wrong("it has no dataset.jsonlines")
        return ArchiveData(_kept(copy, found[0]), *found)


def _code(tar: tarfile.TarFile) -> ArchiveCode:
    files = dict[str, tuple[Path, str]]()
    for name, member in _members(tar):
        if not member.isfile() or not (_is_code(name) or str(name) in DATA):
            continue
        content = tar.extractfile(member)
        assert content is not None  # of a plain file
        with _new_file() as copy:
            digest = _copied(content, copy)
            files[str(name)] = (_kept(copy, digest), digest)
    return ArchiveCode(files)


def _check_program(names: Sequence[str]) -> None:
    for name in names:
        check_path(name, "file")
    if PROGRAM not in names:
        raise Unprocessable(
            f"The archive has training code without {PROGRAM}: add it, or start the client in a folder without "
            f"{CODE}/.",
            param="file",
            code="no_program",
        )


def _is_code(name: PurePosixPath) -> bool:
    """Hidden files and caches of a folder belong to no program."""
    return name.parts[:1] == (CODE,) and not any(
        part.startswith(".") or part == "__pycache__" for part in name.parts
    )


@contextmanager
def _new_file() -> Iterator[Path]:
    copy = inputs_dir() / f"new.{secrets.token_hex(8)}"
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        yield copy
    finally:
        with suppress(OSError):
            copy.unlink(missing_ok=True)


def _kept(copy: Path, digest: str) -> Path:
    return copy.replace(copy.with_name(f"{digest}.jsonl"))


def _copied(content: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("wb") as file:
        while piece := content.read(1 << 20):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def _checked(member: tarfile.TarInfo) -> PurePosixPath:
    name = PurePosixPath(member.name)
    if not (member.isfile() or member.isdir()) or member.issparse():
        raise _wrong(f"{member.name[:200]!r} is a link, a device or a sparse file")
    if name.is_absolute() or ".." in name.parts or "\\" in member.name or "\0" in member.name:
        raise _wrong(f"{member.name[:200]!r} points out of the archive")
    return name


def _converted(lines: IO[bytes], target: Path) -> tuple[str, int]:
    """Hash and number of the records, which are written to `target`."""
    digest, count = hashlib.sha256(), 0
    with target.open("wb") as file:
        for number, line in enumerate(iter(lambda: lines.readline(LONGEST_LINE), b""), 1):
            if not line.strip():
                continue
            text = json.dumps(_record(line, number), ensure_ascii=False).encode() + b"\n"
            digest.update(text)
            file.write(text)
            count += 1
    if not count:
        raise Unprocessable("dataset.jsonlines has no records.", param="file", code="empty_data")
    return digest.hexdigest(), count


def _record(line: bytes, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise Unprocessable(f"Line {number} of dataset.jsonlines is not a JSON object.", param="file")
    if {"input", "output"} <= record.keys():
        if not isinstance(record["input"], str) or not isinstance(record["output"], str):
            raise Unprocessable(
                f"Line {number} of dataset.jsonlines: input and output are texts.", param="file"
            )
        return {"prompt": record["input"], "completion": record["output"]}
    return record


def _wrong(why: str) -> Unprocessable:
    return Unprocessable(f"The archive is refused: {why}.", param="file", code="invalid_archive")
