"""Job folders, job names, and lookup of a job by its name, its hash or a prefix of the hash."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from rondo.base.errors import Conflict, InvalidRequest, ModelError, NotFound, RondoError, StorageError
from rondo.base.lock import FOREVER, locked
from rondo.base.storage.files import read_json, storage_error, write_json
from rondo.base.storage.gguf import gguf_in, is_gguf
from rondo.base.storage.home import jobs_dir, models_dir

SHORT = 12
"""Characters of a hash in output."""
SHORTEST_PREFIX = 6
EXPORT = "export"
"""Folder of the exported model in a job's folder."""
ADAPTER = "adapter"
"""Folder of the exported adapter, if the job trains one."""
HASH = re.compile(rf"[0-9a-f]{{{SHORTEST_PREFIX},64}}", re.IGNORECASE)


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of jobs. A name that could be a hash prefix is not allowed, so that a text is either of the two."""
ORIGIN = "origin.json"
"""Facts about a job that are not part of its hash: name, command, model name, start time."""


def model_in(folder: Path) -> Path:
    """What a server or job opens of a model's folder: the folder itself, or its GGUF file."""
    with contextlib.suppress(ModelError):
        return gguf_in(folder) or folder
    return folder


def is_model(folder: Path) -> bool:
    """Whether the path is a GGUF file, or a folder with one or with a config.json."""
    return is_gguf(folder) or (folder / "config.json").is_file() or model_in(folder) != folder


def job_folders() -> list[Path]:
    try:
        files = list(jobs_dir().glob("*/spec.json"))
    except OSError as error:
        raise StorageError(f"Cannot read {jobs_dir()}: {error.strerror}.") from error
    return [file.parent for file in files if not file.parent.name.startswith(".")]


def find_job(text: str, param: str = "job") -> Path:
    """The folder of the only job with this name, hash or prefix of a hash."""
    found = _matching(text, param)
    if len(found) > 1:
        jobs = ", ".join(sorted(_described(folder) for folder in found))
        raise InvalidRequest(
            f"{text!r} matches {len(found)} jobs: {jobs}. Give more characters of the hash.", param=param
        )
    if not found:
        names = [name for name in map(name_of_job, job_folders()) if name]
        close = difflib.get_close_matches(text, names, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}?" if close else "`rondo job list` lists the jobs."
        raise NotFound(f"There is no job {text!r} in {jobs_dir()}. {hint}", param=param, code="job_not_found")
    return found[0]


def name_of_job(folder: Path) -> str:
    """The name of the job in the folder; empty if it has none."""
    with contextlib.suppress(RondoError):
        origin = read_json(folder / ORIGIN)
        return str(origin.get("name") or "") if isinstance(origin, dict) else ""
    return ""


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} cannot name a job: use at most 64 letters, digits, '.', '_' and '-', and begin with a letter or "
            "digit.",
            param="name",
        )
    if HASH.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} cannot name a job, because it could be the beginning of a job's hash: add a letter after f.",
            param="name",
        )


def free_name(wanted: str, folder: Path) -> str:
    """`wanted`, or `wanted-2` and so on if another job has that name."""
    taken = {name_of_job(other) for other in job_folders() if other != folder}
    number, name = 1, wanted
    while name in taken:
        number += 1
        name = f"{wanted}-{number}"
    return name


def name_job(folder: Path, name: str) -> None:
    """Set the name of a job, which must be unique among all jobs. Only `origin.json` changes, so a running job is not
    affected.
    """
    check_name(name)
    if is_model(models_dir() / name):
        raise Conflict(
            f"A model has the name {name!r}: choose another name for the job, so that commands can tell them apart.",
            param="name",
            code="name_is_taken",
        )
    with _naming():
        for other in job_folders():
            if other != folder and name_of_job(other) == name:
                raise Conflict(
                    f"Job {other.name[:SHORT]} already has the name {name!r}: choose another name, or rename that job "
                    f"first (`rondo job rename {name} OTHER`).",
                    param="name",
                    code="name_is_taken",
                )
        update_origin(folder, name=name)


def add_alias(folder: Path, alias: str) -> None:
    """Adds a name under which the job's model is served, such as `ft:base:org:suffix:id`."""
    with _naming():
        if alias not in (known := aliases_of(folder)):
            update_origin(folder, aliases=[*known, alias])


def remove_alias(folder: Path, alias: str) -> None:
    with _naming():
        if alias in (known := aliases_of(folder)):
            update_origin(folder, aliases=[each for each in known if each != alias])


def aliases_of(folder: Path) -> list[str]:
    with contextlib.suppress(RondoError):
        origin = read_json(folder / ORIGIN)
        return [str(each) for each in origin.get("aliases", ())] if isinstance(origin, dict) else []
    return []


def update_origin(folder: Path, **facts: object) -> None:
    try:
        origin = read_json(folder / ORIGIN)
    except NotFound:
        origin = {}
    if any(origin.get(key) != value for key, value in facts.items()):
        write_json(folder / ORIGIN, {**origin, **facts})


@contextlib.contextmanager
def _naming() -> Iterator[None]:
    """One process at a time gives names."""
    place = jobs_dir() / ".names.lock"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(place, FOREVER, required=False):
            yield
    except OSError as error:
        raise storage_error(place, error) from error


def _matching(text: str, param: str) -> list[Path]:
    folders = job_folders()
    if HASH.fullmatch(text):
        return [folder for folder in folders if folder.name.startswith(text.lower())]
    # The name of an unnamed job is empty, and an empty text names none.
    named = [folder for folder in folders if text and text in (name_of_job(folder), *aliases_of(folder))]
    if not named and re.fullmatch(r"[0-9a-fA-F]*", text):
        raise NotFound(
            f"{text!r} is not the name of a job, and too short for a hash: give {SHORTEST_PREFIX} characters of the "
            "hash or more.",
            param=param,
            code="job_not_found",
        )
    return named


def _described(folder: Path) -> str:
    name = name_of_job(folder)
    return f"{name} ({folder.name})" if name else folder.name
