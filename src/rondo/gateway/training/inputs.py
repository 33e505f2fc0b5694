"""Uploaded files as inputs of a job: names of their own, so that a deleted file does not stop a job."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, overload

from rondo.base.errors import InvalidRequest, NotFound
from rondo.base.storage.files import atomic_write, storage_error
from rondo.base.storage.hashing import sha256_file, sha256_json
from rondo.base.storage.home import home, models_dir
from rondo.control.jobs.planning import planned
from rondo.gateway.training.graders import check_grader
from rondo.gateway.training.settings import tree_of
from rondo.hub.models import cached_model
from rondo.hub.names import hub_name
from rondo.jobs.folders import find_job, is_model, model_in
from rondo.jobs.job import Job
from rondo.jobs.spec import JobSpec
from rondo.plan.sizes.hf import read_config, shape_of

HELD_OUT_EVERY = 8
LONGEST_LINE = 64 << 20
Record = dict[str, Any]


def input_of(source: Path) -> tuple[Path, str]:
    """A file by its content hash, and the hash."""
    digest = sha256_file(source)
    target = inputs_dir() / f"{digest}.jsonl"
    with suppress(FileNotFoundError):
        os.utime(target)  # so that the sweep leaves it to the submission
        return target, digest
    copy = target.with_suffix(f".{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, copy)
        except OSError:  # another file system
            shutil.copyfile(source, copy)
        copy.replace(target)
    except OSError as error:
        copy.unlink(missing_ok=True)
        raise storage_error(target, error) from error
    return target, digest


def content_input(content: bytes) -> tuple[Path, str]:
    """A file with this content, by its hash, and the hash."""
    digest = hashlib.sha256(content).hexdigest()
    target = inputs_dir() / f"{digest}.jsonl"
    atomic_write(target, content)
    return target, digest


def pairs_of(source: Path, param: str) -> tuple[Path, str]:
    """Preference pairs as an input; OpenAI's form of a pair is converted."""
    records = _records(source, param, blank=True)
    pairs = (None if record is None else _as_pair(record) for record in records)
    path, digest, _ = _written(pairs)
    return path, digest


def task_of(training: Path, validation: Path | None) -> tuple[Path, str, int]:
    """A task file of reinforcement learning, its hash, and the number of training records. Without a validation file,
    each eighth record is held out, or the last one of fewer."""
    count = sum(1 for _ in _records(training, "training_file"))
    if validation is None and count < 2:
        raise InvalidRequest(
            "training_file has a single record: reinforcement needs two or more, or a validation_file.",
            param="training_file",
        )
    every = HELD_OUT_EVERY if count >= HELD_OUT_EVERY else count

    def marked() -> Iterator[Record | None]:
        number = 0
        for record in _records(training, "training_file", blank=True):
            number += record is not None
            held_out = validation is None and number % every == 0
            split = "held_out" if held_out else "train"
            yield None if record is None else {"split": split, **record}
        if validation is not None:
            for record in _records(validation, "validation_file", blank=True):
                yield None if record is None else {**record, "split": "held_out"}

    return _written(marked(), lambda record: record["split"] == "train")


def lines_in(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in iter(lambda: lines.readline(LONGEST_LINE), b""))


def check_task(file: Path) -> None:
    """Raises if a line is no record, or has a grader of its own that requests may not use."""
    for _ in _records(file, "task"):
        pass


def remove_input(path: str) -> None:
    """Removes an input that no job uses any more."""
    found = Path(path)
    if found.parent == inputs_dir():
        found.unlink(missing_ok=True)


def old_inputs(seconds: float) -> list[Path]:
    """Inputs without a change for so many seconds."""
    latest, found = time.time() - seconds, []
    for path in inputs_dir().glob("*"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < latest:
                found.append(path)
    return found


def model_state(model: str) -> str:
    """Names, sizes and times of a local model's files, so that a retrained model of the same name is another input.
    Empty for models of the hub."""
    folder = models_dir() / model
    if "/" in model or not folder.is_dir():
        return ""
    files = sorted(
        (path.name, stat.st_size, stat.st_mtime_ns) for path in folder.iterdir() if (stat := path.stat())
    )
    return sha256_json(files)


def local_model(model: str) -> Path | None:
    """The model's folder or GGUF file on this machine, by name, by job or in the hub's cache; nothing is downloaded."""
    if (name := hub_name(model)) is not None:
        return cached_model(name)
    if is_model(models_dir() / model):
        return model_in(models_dir() / model)
    with suppress(NotFound, InvalidRequest):
        made = Job(find_job(model)).result
        return made if made.exists() else None
    return None


def with_plan(spec: JobSpec, gpu: str) -> JobSpec:
    """The specification with the planner's layout, if its model is a folder of this machine."""
    file = models_dir() / spec.model / "config.json"
    if spec.kind == "rl" or "/" in spec.model or not file.is_file():
        return spec
    train = tree_of("train")().train  # type: ignore[attr-defined]
    tokens = int(spec.settings.get("tokens_per_step", train.tokens_per_step))
    length = int(spec.settings.get("max_length", train.max_length))
    return planned(spec, shape_of(read_config(file), spec.model), gpu, tokens, length)


def _written(
    records: Iterator[Record | None], counted: Callable[[Record], bool] = bool
) -> tuple[Path, str, int]:
    """Records as an input; path, hash and number of the counted ones. None is a blank line, so that errors name the
    lines of the uploaded file."""
    folder, digest, count = inputs_dir(), hashlib.sha256(), 0
    copy = folder / f"new.{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with copy.open("wb") as file:
            for record in records:
                line = b"\n" if record is None else json.dumps(record, ensure_ascii=False).encode() + b"\n"
                digest.update(line)
                file.write(line)
                count += record is not None and counted(record)
        path = folder / f"{digest.hexdigest()}.jsonl"
        copy.replace(path)
    except OSError as error:
        raise storage_error(copy, error) from error
    finally:
        with suppress(OSError):
            copy.unlink(missing_ok=True)
    return path, digest.hexdigest(), count


def _as_pair(record: Record) -> Record:
    given = record.get("input")
    if not isinstance(given, dict) or not {"preferred_output", "non_preferred_output"} <= record.keys():
        return record
    tools = {"tools": given["tools"]} if given.get("tools") else {}
    return {
        "messages": given.get("messages"),
        **tools,
        "chosen": record["preferred_output"],
        "rejected": record["non_preferred_output"],
    }


@overload
def _records(file: Path, param: str) -> Iterator[Record]: ...


@overload
def _records(file: Path, param: str, blank: Literal[True]) -> Iterator[Record | None]: ...


def _records(file: Path, param: str, blank: bool = False) -> Iterator[Record | None]:
    """Records of a file; with `blank`, None for each blank line."""
    with file.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(LONGEST_LINE), b""), 1):
            if not line.strip():
                if blank:
                    yield None
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                raise InvalidRequest(f"Line {number} of {param} is not a JSON object.", param=param)
            if "grader" in record:
                check_grader(record["grader"], f"line {number} of {param}: grader")
            yield record


def inputs_dir() -> Path:
    return home() / "runs" / "inputs"
