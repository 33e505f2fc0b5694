"""Publication of a job's model: to a folder of the gateway's machine, an object store, or the Hugging Face Hub.

A publication runs as a process of its own, `rondo model export` and then the copy, and reports its phases in a file, so
that a restart of the gateway loses none that has ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rondo.base.environ import minimal
from rondo.base.errors import Conflict, NotFound, RondoError, StorageError
from rondo.base.lock import is_in_use, lock
from rondo.base.process import exit_reason, last_line
from rondo.base.storage.files import read_json, write_json
from rondo.base.storage.home import home
from rondo.control.jobs.launchers.folder import PASSED, STORE_KEYS
from rondo.gateway.training.registry.remote import upload
from rondo.gateway.training.scalarlm.fields import Unprocessable
from rondo.jobs.job import Job

Mode = Literal["merged", "adapter"]
LOCK_SECONDS = 1.0
"""Seconds of retries for the lock, because each look at the status holds it for an instant."""
ENDED = frozenset(["done", "error", "cancelled"])
PUSH = """
import sys
from huggingface_hub import HfApi
folder, repo, private, message = sys.argv[1:]
api = HfApi(library_name="rondo")
api.create_repo(repo, private=private == "1", exist_ok=True)
api.upload_folder(folder_path=folder, repo_id=repo, commit_message=message)
print(api.endpoint + "/" + repo)
"""
"""The token is in the environment of this process alone."""


@dataclass(frozen=True)
class Publication:
    mode: Mode
    target: str
    """owner/name of the Hub, a folder, or a URL."""
    hub: bool
    step: int | None = None
    private: bool = False
    token: str = ""
    message: str = "Upload model"


class ModelPublisher:
    """Publications that this gateway runs, by job."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, job: Job, wanted: Publication) -> dict[str, Any]:
        folder, held = await asyncio.to_thread(_begun, job, wanted)
        task = self._tasks[job.name] = asyncio.create_task(_run(job, wanted, folder))
        task.add_done_callback(lambda _: os.close(held))
        return {"publish_job_id": _id(folder), "publish_dir": str(folder), "status": "QUEUED"}

    def status(self, job: Job) -> dict[str, Any]:
        folder = _newest(job)
        ended = not is_in_use(_root(job))  # before the status is read
        status: dict[str, Any] = read_json(folder / "status.json")
        if status["phase"] not in ENDED and ended:
            status |= {"phase": "error", "error": "The gateway ended meanwhile: publish the model again."}
        return status

    async def cancel(self, job: Job) -> dict[str, Any]:
        task = self._tasks.get(job.name)
        if task is not None and not task.done():
            await asyncio.sleep(0)  # the task records its end once it has begun
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return await asyncio.to_thread(self.status, job)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def check(job: Job, wanted: Publication) -> None:
    """Raises if the job has no such model."""
    adapter = job.adapter / "adapter_config.json"
    whole = job.export / "config.json"
    if wanted.step is None:
        if wanted.mode == "adapter" and not adapter.is_file():
            raise Unprocessable("This job has no adapter: publish it with the mode merged.", param="mode")
        if wanted.mode == "merged" and not whole.is_file():
            raise Unprocessable(
                "This job has no merged model, since its adapter cannot be merged or it has not ended: publish it with "
                "the mode adapter.",
                param="mode",
            )


def _begun(job: Job, wanted: Publication) -> tuple[Path, int]:
    """Folder of a new publication, and the handle of the lock that marks it as running for all gateways."""
    check(job, wanted)
    root = _root(job)
    folder = root / f"{time.time_ns()}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    held = os.open(root, os.O_RDONLY)
    try:
        if not lock(held, LOCK_SECONDS):
            folder.rmdir()
            raise Conflict(
                f"Job {job.label} is being published: wait, or cancel it first.",
                param="job",
                code="publish_running",
            )
        status = {"mode": wanted.mode, "repo_id": wanted.target, "phase": "queued", "started_at": time.time()}
        status |= {"publish_job_id": _id(folder), "publish_dir": str(folder)}
        write_json(folder / "status.json", status | {"completed_at": None, "error": None, "repo_url": None})
    except BaseException:
        os.close(held)
        raise
    return folder, held


def _id(folder: Path) -> str:
    return f"publish-{folder.name}"


def log_file(job: Job) -> Path:
    return _newest(job) / "publish.log"


def _root(job: Job) -> Path:
    return home() / "published" / job.name


def _newest(job: Job) -> Path:
    folders = sorted(_root(job).glob("*/status.json"))
    if not folders:
        raise NotFound(f"Job {job.label} was not published.", param="job", code="not_published")
    return folders[-1].parent


async def _run(job: Job, wanted: Publication, folder: Path) -> None:
    work = folder / "model"
    try:
        await asyncio.to_thread(_note, folder, phase="merging" if wanted.mode == "merged" else "saving")
        source = await _source(job, wanted, work, folder)
        await asyncio.to_thread(_note, folder, phase="uploading")
        url = await _copy(source, wanted, folder)
        await asyncio.to_thread(_note, folder, phase="done", repo_url=url, completed_at=time.time())
    except asyncio.CancelledError:
        await asyncio.to_thread(_note, folder, phase="cancelled", completed_at=time.time())
        raise
    except (RondoError, OSError) as error:
        message = getattr(error, "message", str(error)).replace(wanted.token or "\0", "***")
        await asyncio.to_thread(_note, folder, phase="error", error=message, completed_at=time.time())
    finally:
        await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)


async def _source(job: Job, wanted: Publication, work: Path, folder: Path) -> Path:
    """Folder of the model to publish."""
    if wanted.step is None:
        return job.export if wanted.mode == "merged" else job.adapter
    merge = ["--merge"] if wanted.mode == "merged" else []
    command = ["-m", "rondo.cli", "model", "export", f"{job.name}@{wanted.step}", str(work), *merge]
    keys = {name: os.environ[name] for name in STORE_KEYS if name in os.environ}
    await _process(command, folder, keys)
    return work


async def _copy(source: Path, wanted: Publication, folder: Path) -> str:
    if wanted.hub:
        told = ["-c", PUSH, str(source), wanted.target, "1" if wanted.private else "0", wanted.message]
        return (await _process(told, folder, {"HF_TOKEN": wanted.token})).strip().splitlines()[-1]
    if "://" in wanted.target:
        await asyncio.to_thread(upload, source, wanted.target)
        return wanted.target
    await asyncio.to_thread(_copy_folder, source, Path(wanted.target))
    return wanted.target


def _copy_folder(source: Path, target: Path) -> None:
    from rondo.base.storage.files import atomic_dir

    with atomic_dir(target) as new:
        shutil.copytree(source, new, dirs_exist_ok=True)


async def _process(arguments: list[str], folder: Path, env: Mapping[str, str]) -> str:
    """Output of a Python process; its output is also the log of the publication."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env={**minimal(PASSED), **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.kill()
        raise
    text = output.decode(errors="replace")
    with (folder / "publish.log").open("a") as file:
        file.write(text)
    if process.returncode:
        raise StorageError(last_line(text, 500).removeprefix("error: ") or exit_reason(process.returncode))
    return text


def _note(folder: Path, **facts: Any) -> None:
    with suppress(NotFound, json.JSONDecodeError):
        write_json(folder / "status.json", {**read_json(folder / "status.json"), **facts})
