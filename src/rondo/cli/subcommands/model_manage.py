"""`rondo model list|cp|rename|rm`: the models of this machine, those that jobs have left among them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from rondo.base.errors import Conflict, NotFound, RondoError, StorageError
from rondo.base.storage.files import read_json, storage_error
from rondo.base.storage.home import models_dir
from rondo.base.units import human_bytes
from rondo.cli.options.arguments import VerbParser
from rondo.cli.view.confirm import confirm
from rondo.cli.view.progress import byte_progress
from rondo.cli.view.table import aligned, fitted
from rondo.jobs import control
from rondo.jobs.folders import job_folders, name_of_job
from rondo.jobs.job import Job
from rondo.jobs.summary import LINEAGE, score_of, shown_score

MODEL = "a model's name or folder, or a job's name or hash"
COLUMNS = ("name", "date", "size", "parent", "job", "score")


def list_verb(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo model list", "The models of this machine: RONDO_HOME/models, and results of jobs."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    arguments = parser.parse_args(argv)
    rows = [*_named_models(), *_job_models()]
    if arguments.json:
        print(json.dumps(rows))
    elif not rows:
        print(
            f"There are no models in {models_dir()} yet. `rondo demo` trains a small one, `rondo pull ORG/NAME` "
            "downloads one of the Hugging Face Hub."
        )
    else:
        print(_table(rows))
    return 0


def cp_verb(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo model cp", "Copy a model, or the result of a job, to a name in RONDO_HOME/models."
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("name", metavar="NAME", help="name of the copy")
    parser.add_argument("--replace", action="store_true", help="replace a model of that name")
    arguments = parser.parse_args(argv)
    from rondo.models.store import import_model, place, resolve

    place(arguments.name)
    _check_name(arguments.name)
    source = resolve(arguments.model)
    with byte_progress(f"copying {arguments.model}") as report:
        path = import_model(source, arguments.name, replace=arguments.replace, report=report)
    print(f"{arguments.name} is in {path}")
    return 0


def rename_verb(argv: list[str]) -> int:
    parser = VerbParser("rondo model rename", "Rename a model in RONDO_HOME/models.")
    parser.add_argument("model", metavar="MODEL", help="its name in `rondo model list`")
    parser.add_argument("name", metavar="NAME", help="the new name")
    parser.add_argument("--force", action="store_true", help="rename it even if it is in use")
    arguments = parser.parse_args(argv)
    from rondo.models.store import place

    source, target = _own(arguments.model), place(arguments.name)
    _check_name(arguments.name)
    if target.exists():
        raise Conflict(f"There is a model {arguments.name} already: choose another name, or remove it first.")
    if not arguments.force:
        control.check_unused(source, f"model {arguments.model}")
    try:
        os.rename(source, target)
    except OSError as error:
        raise storage_error(target, error) from error
    print(f"{arguments.name} is in {target}")
    return 0


def rm_verb(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo model rm",
        "Remove models from RONDO_HOME/models, or pulled ones from the cache of the Hugging Face Hub.",
    )
    parser.add_argument("models", metavar="MODEL", nargs="+", help="names in `rondo model list`")
    parser.add_argument("--force", action="store_true", help="remove a model in use")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    arguments = parser.parse_args(argv)
    folders = {name: _own(name) for name in dict.fromkeys(arguments.models)}
    if not arguments.force:
        for name, folder in folders.items():
            control.check_unused(folder, f"model {name}")
    lines = [f"{name}  {human_bytes(_size(folder))}" for name, folder in folders.items()]
    if not confirm("Remove", lines, arguments.yes):
        return 1
    freed = sum(map(_remove, folders.values()))
    print(f"removed {', '.join(folders)}: {human_bytes(freed)} freed")
    return 0


def _size(path: Path) -> int:
    """Bytes of a model's folder or GGUF file; a pulled one consists of links to them."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _remove(folder: Path) -> int:
    """Bytes freed."""
    from rondo.hub.cache import remove_snapshot, repo_of_snapshot

    if repo_of_snapshot(folder) is None:
        return control.remove_folder(folder)
    freed = _size(folder)
    remove_snapshot(folder)
    return freed


def _own(name: str) -> Path:
    """Folder of a model in RONDO_HOME/models, broken ones included, or of a pulled model."""
    from rondo.models.store import list_pulled, place

    if "/" in name and (pulled := [each.path for each in list_pulled() if each.name == name]):
        return pulled[0]
    folder = place(name)
    if folder.is_symlink() or folder.is_dir():
        return folder
    for job in job_folders():
        if name in (name_of_job(job), job.name):
            raise NotFound(
                f"{name} is a job: use `rondo job rm {name}` or `rondo job rename`.", param="model"
            )
    raise NotFound(
        f"There is no model {name!r} in {models_dir()}. `rondo model list` lists the models.", param="model"
    )


def _check_name(name: str) -> None:
    if any(name_of_job(job) == name for job in job_folders()):
        raise Conflict(f"A job has the name {name!r}: choose another name, or rename the job.", param="name")


def _named_models() -> list[dict[str, Any]]:
    from rondo.models.store import list_models, list_pulled

    jobs = {job.name: job for job in job_folders()}
    found = [*list_models(), *((each.name, each.path) for each in list_pulled())]
    return [_row(name, path, jobs) for name, path in found]


def _job_models() -> list[dict[str, Any]]:
    jobs = {job.name: job for job in job_folders()}
    found = []
    for folder in jobs.values():
        job = Job(folder)
        if (job.export / "config.json").is_file():
            found.append(_row(job.label, job.export, jobs, of=job))
    return found


def _row(name: str, path: Path, jobs: dict[str, Path], of: Job | None = None) -> dict[str, Any]:
    from rondo.models.store import summary, written_at

    row: dict[str, Any] = {"name": name, "path": str(path)}
    try:
        found = summary(path)
        lineage = _lineage(path)
        made = of or (Job(jobs[lineage["job"]]) if lineage.get("job") in jobs else None)
        return row | {
            "date": written_at(path),
            "family": found.family,
            "parameters": found.parameters,
            "dtypes": list(found.dtypes),
            "disk_bytes": found.disk_bytes,
            "parent": lineage.get("parent"),
            "job": made.label if made else None,
            "job_hash": made.name if made else lineage.get("job"),
            "score": score_of(made) if made else lineage.get("score") or {},
        }
    except RondoError as error:
        return row | {"error": error.message}
    except Exception as error:  # an unexpected fault of one folder must not hide the others
        return row | {"error": " ".join(f"{type(error).__name__}: {error}".split())}


def _lineage(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path / LINEAGE)
    except (NotFound, StorageError):
        return {}
    return found if isinstance(found, dict) else {}


def _table(rows: list[dict[str, Any]]) -> str:
    cells, broken = [list(COLUMNS)], {}
    for row in rows:
        if "error" in row:
            broken[len(cells)] = f"{row['name']}  broken: {row['error']}"
            cells.append([row["name"], *[""] * (len(COLUMNS) - 1)])
        else:
            cells.append(_shown(row))
    lines = aligned(fitted(cells, (0, 3, 4)))
    return "\n".join(broken.get(number, line) for number, line in enumerate(lines))


def _shown(row: dict[str, Any]) -> list[str]:
    parent = str(row["parent"] or "-")
    return [
        row["name"],
        time.strftime("%Y-%m-%d", time.localtime(row["date"])),
        human_bytes(row["disk_bytes"]).replace(" ", ""),
        Path(parent).name if parent.startswith("/") else parent,
        row["job"] or "-",
        shown_score(row["score"]),
    ]
