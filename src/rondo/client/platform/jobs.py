"""Training jobs, files and batches of a gateway: `rondo.Client().train("demo", "facts.jsonl").wait()`.

Local data are uploaded as JSON Lines. A `RemoteJob` follows its job; in a notebook it shows its curves.
"""

from __future__ import annotations

import codecs
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlencode

from rondo.base.errors import InvalidRequest, NotFound, RondoError
from rondo.client.platform.curves import curves_html
from rondo.client.platform.queue import patiently
from rondo.client.platform.uploads import jsonl_of

Answer = TypeVar("Answer")
JsonObject = dict[str, Any]
Source = str | os.PathLike[str]
TrainKind = Literal["pretrain", "sft", "preference", "reward"]
FINAL = ("succeeded", "failed", "cancelled")
GAMES = ("reverse", "add", "sort", "guess", "calculator")
POLL_SECONDS = 1.0
PAGE = 100
METRICS_PAGE = 10_000


class JobVerbs(ABC, Generic[Answer]):
    """Single calls, written once for both clients."""

    @abstractmethod
    def _call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer: ...

    def submit_job(self, body: Mapping[str, Any]) -> Answer:
        """`POST /v1/jobs`: kind, model, data or task as ids of files, settings."""
        return self._call("POST", "/v1/jobs", dict(body))

    def job_facts(self, job: str) -> Answer:
        """State, step, settings and error, by id or hash."""
        return self._call("GET", f"/v1/jobs/{job}")

    def job_page(self, after: str | None = None, limit: int = PAGE) -> Answer:
        """Jobs of the key, the newest first, after the last id of the previous page."""
        query = {"limit": limit} | ({} if after is None else {"after": after})
        return self._call("GET", f"/v1/jobs?{urlencode(query)}")

    def job_metrics(self, job: str, after: int = 0, limit: int = METRICS_PAGE) -> Answer:
        return self._call("GET", f"/v1/jobs/{job}/metrics?{urlencode({'after': after, 'limit': limit})}")

    def cancel_job(self, job: str) -> Answer:
        return self._call("POST", f"/v1/jobs/{job}/cancel")

    def pause_job(self, job: str) -> Answer:
        return self._call("POST", f"/v1/jobs/{job}/pause")

    def resume_job(self, job: str) -> Answer:
        return self._call("POST", f"/v1/jobs/{job}/resume")

    def delete_job(self, job: str) -> Answer:
        return self._call("DELETE", f"/v1/jobs/{job}")

    def file_page(self, after: str | None = None, limit: int = PAGE, purpose: str | None = None) -> Answer:
        options = {"after": after, "limit": limit, "purpose": purpose}
        query = {name: value for name, value in options.items() if value is not None}
        return self._call("GET", f"/v1/files?{urlencode(query)}")

    def file(self, id: str) -> Answer:
        return self._call("GET", f"/v1/files/{id}")

    def delete_file(self, id: str) -> Answer:
        return self._call("DELETE", f"/v1/files/{id}")

    def create_batch(
        self,
        file: str,
        endpoint: str,
        window: str = "24h",
        *,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> Answer:
        """Begins a batch. A repetition with the same `idempotency_key` returns the batch that exists."""
        body = {"input_file_id": file, "endpoint": endpoint, "completion_window": window, **options}
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return self._call("POST", "/v1/batches", body, headers)

    def batch(self, id: str) -> Answer:
        return self._call("GET", f"/v1/batches/{id}")

    def batch_page(self, after: str | None = None, limit: int = PAGE) -> Answer:
        query = {"limit": limit} | ({} if after is None else {"after": after})
        return self._call("GET", f"/v1/batches?{urlencode(query)}")

    def cancel_batch(self, id: str) -> Answer:
        return self._call("POST", f"/v1/batches/{id}/cancel")


@dataclass
class RemoteJob:
    """A job of a gateway. `facts` are those of the last look."""

    client: SyncJobs
    facts: JsonObject
    rows: list[JsonObject] = field(default_factory=list, repr=False)
    """Metrics by step, as far as they were read."""

    @property
    def id(self) -> str:
        return str(self.facts["id"])

    @property
    def state(self) -> str:
        return str(self.facts["state"])

    @property
    def hash(self) -> str | None:
        """The job's hash, which is also the name of its model; None until its process has computed it."""
        found: str | None = self.facts["hash"]
        return found

    @property
    def model(self) -> str:
        """Name of the resulting model."""
        return str(self.facts["name"] or self.facts["hash"] or "")

    @property
    def result(self) -> dict[str, float] | None:
        """Scores of an evaluation that has succeeded."""
        found: dict[str, float] | None = self.facts["result"]
        return found

    def refresh(self) -> RemoteJob:
        self.facts = patiently(lambda: self.client.job_facts(self.id))
        return self

    def metrics(self) -> list[JsonObject]:
        """Metrics of all steps so far."""
        while True:
            after = int(self.rows[-1]["step"]) if self.rows else 0
            page = patiently(lambda after=after: self.client.job_metrics(self.id, after))  # type: ignore[misc]
            self.rows += page["data"]
            if not page["has_more"]:
                return self.rows

    def wait(self, seconds: float | None = None, *, show: bool | None = None) -> RemoteJob:
        """Waits for the end, for at most `seconds`. A failed or cancelled job raises its error. In a notebook, or with
        `show`, the curves are displayed meanwhile."""
        end = None if seconds is None else time.monotonic() + seconds
        display = _display() if show is None or show else None
        while self.refresh().state not in FINAL:
            if display is not None:
                display(self)
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"Job {self.id} is {self.state} after {seconds:g} s.")
            time.sleep(POLL_SECONDS)
        if display is not None:
            display(self)
        if self.state != "succeeded":
            error = self.facts["error"] or {}
            message = error.get("message") or f"Job {self.id} was cancelled."
            raise InvalidRequest(str(message), param=error.get("param"), code=error.get("code"))
        return self

    def logs(self, follow: bool = False) -> Iterator[str]:
        """Pieces of the output; with `follow` until the job has ended."""
        return self.client.logs(self.id, follow=follow)

    def cancel(self) -> RemoteJob:
        self.facts = self.client.cancel_job(self.id)
        return self

    def pause(self) -> RemoteJob:
        self.facts = self.client.pause_job(self.id)
        return self

    def resume(self) -> RemoteJob:
        self.facts = self.client.resume_job(self.id)
        return self

    def delete(self) -> None:
        """Deletes the job; its model stays."""
        self.client.delete_job(self.id)

    def _repr_html_(self) -> str:
        with suppress(RondoError):  # the curves so far
            self.metrics()
        return curves_html(self.facts, self.rows)


class SyncJobs(JobVerbs[JsonObject]):
    """Calls that upload local data and follow jobs."""

    @abstractmethod
    def _send(self, method: str, path: str, **options: Any) -> Any: ...

    @abstractmethod
    def _pieces(self, method: str, path: str, **options: Any) -> Generator[bytes, None, None]:
        """The body of a response, as it arrives."""

    def train(
        self,
        model: str,
        data: Source,
        kind: TrainKind = "sft",
        *,
        validation_data: Source | None = None,
        name: str | None = None,
        resources: Mapping[str, int] | None = None,
        launcher: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> RemoteJob:
        """Submits a training job. Data are a local file, the id of an uploaded one, or ORG/NAME of the hub. `settings`
        are those of `rondo train`, such as `{"lr": 1e-4, "adapter.kind": "lora"}`, and `resources` are `gpus`, `nodes`,
        `ranks` and `time_limit`. `launcher` is local, slurm, kubernetes or ray, by default the gateway's."""
        body = {"kind": kind, "model": model, "data": self._placed(data)}
        if validation_data is not None:
            body["validation_data"] = self._placed(validation_data)
        return self._submitted(body, name, resources, settings, launcher)

    def rl(
        self,
        model: str,
        task: Source,
        *,
        grader: Mapping[str, Any] | None = None,
        name: str | None = None,
        resources: Mapping[str, int] | None = None,
        launcher: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> RemoteJob:
        """Submits a job of reinforcement learning. The task is reverse, add, sort, guess or calculator, a local file of
        prompts, or the id of an uploaded one."""
        told = {**(settings or {}), **({"grader": dict(grader)} if grader else {})}
        named = str(task) if str(task) in GAMES else self._placed(task)
        return self._submitted({"kind": "rl", "model": model, "task": named}, name, resources, told, launcher)

    def evaluate(
        self,
        model: str,
        data: Source | None = None,
        tasks: Source | None = None,
        *,
        resources: Mapping[str, int] | None = None,
        launcher: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> RemoteJob:
        """Submits an evaluation, whose scores are the `result` of the job."""
        given = {"data": data, "task": tasks}
        body = {name: self._placed(value) for name, value in given.items() if value is not None}
        return self._submitted(
            {"kind": "evaluate", "model": model, **body}, None, resources, settings, launcher
        )

    def run_script(
        self,
        command: Sequence[str],
        files: Mapping[str, Source] | None = None,
        *,
        name: str | None = None,
        resources: Mapping[str, int] | None = None,
        launcher: str | None = None,
    ) -> RemoteJob:
        """Submits a program with files by their names in its working folder. The key needs the scope `code`."""
        ids = {target: self.upload(source, "user_data")["id"] for target, source in (files or {}).items()}
        body = {"kind": "script", "command": list(command), "files": ids}
        return self._submitted(body, name, resources, None, launcher)

    def _submitted(
        self,
        body: JsonObject,
        name: str | None,
        resources: Mapping[str, int] | None,
        settings: Mapping[str, Any] | None,
        launcher: str | None = None,
    ) -> RemoteJob:
        given = {
            "name": name,
            "launcher": launcher,
            "resources": resources and dict(resources),
            "settings": settings and dict(settings),
        }
        whole = body | {key: value for key, value in given.items() if value}
        return RemoteJob(self, self.submit_job(whole))

    def jobs(self, limit: int | None = None) -> list[RemoteJob]:
        """Jobs of the key, the newest first."""
        found: list[RemoteJob] = []
        after: str | None = None
        while limit is None or len(found) < limit:
            page = self.job_page(after, PAGE if limit is None else min(PAGE, limit - len(found)))
            found += [RemoteJob(self, each) for each in page["data"]]
            if not page["has_more"]:
                break
            after = page["data"][-1]["id"]
        return found

    def job(self, id: str) -> RemoteJob:
        """A job by its id or hash."""
        return RemoteJob(self, self.job_facts(id))

    def logs(self, job: str, *, follow: bool = False) -> Iterator[str]:
        """Pieces of a job's output; with `follow` until the job has ended. Output of a further attempt follows that of
        the one before."""
        attempt, offset = 0, 0
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            facts = patiently(lambda: self.job_facts(job))
            if facts["attempt"] != attempt:
                attempt, offset = facts["attempt"], 0
                decoder.reset()
            ended = facts["state"] in (*FINAL, "paused")
            while data := self._log_piece(job, attempt, offset):
                offset += len(data)
                yield decoder.decode(data)
            if ended or not follow:
                return
            time.sleep(POLL_SECONDS)

    def _log_piece(self, job: str, attempt: int, offset: int) -> bytes:
        query = urlencode({"attempt": max(attempt, 1), "offset": offset})
        try:
            answer = self._send("GET", f"/v1/jobs/{job}/logs?{query}")
        except NotFound:  # no output yet
            return b""
        data: bytes = answer.content
        return data

    def upload(self, source: Source, purpose: str = "fine-tune") -> JsonObject:
        """Uploads a local file."""
        path = Path(source)
        try:
            with path.open("rb") as file:
                answer = self._send(
                    "POST", "/v1/files", files={"file": (path.name, file)}, data={"purpose": purpose}
                )
        except FileNotFoundError:
            raise NotFound(f"There is no file {path}.", param="file") from None
        found: JsonObject = answer.json()
        return found

    def download(self, id: str, target: Source) -> int:
        """Writes an uploaded or resulting file to a local one, which is replaced at the end; the number of bytes."""
        return write_pieces(target, self.file_pieces(id))

    def file_content(self, id: str) -> bytes:
        return b"".join(self.file_pieces(id))

    def file_pieces(self, id: str) -> Generator[bytes, None, None]:
        """Content of a file of any size, as it arrives."""
        return self._pieces("GET", f"/v1/files/{id}/content")

    def _placed(self, source: Source) -> str:
        """Id of an uploaded file, name on the hub, or the id of a local file after its upload."""
        text = os.fspath(source)
        path = Path(text)
        if not path.exists():
            if path.suffix in (".jsonl", ".json", ".csv", ".tsv", ".txt", ".parquet"):
                raise NotFound(f"There is no file {text}.", param="data")
            return text
        with jsonl_of(path) as lines:
            return str(self.upload(lines)["id"])


def write_pieces(target: Source, pieces: Iterable[bytes]) -> int:
    """Writes a file that appears when it is whole; the number of bytes. A device or pipe is written directly."""
    path = Path(target)
    direct = path.exists() and not path.is_file()
    partial = path if direct else path.with_name(f"{path.name}.part")
    try:
        with partial.open("wb") as file:
            size = sum(map(file.write, pieces))
        if not direct:
            partial.replace(path)
    finally:
        if not direct:
            partial.unlink(missing_ok=True)
    return size


def _display() -> Any:
    """Function that shows a job in a notebook, each time in the place of the time before; None elsewhere."""
    ipython: Any = sys.modules.get("IPython")  # a notebook has imported it
    if ipython is None or type(ipython.get_ipython()).__name__ != "ZMQInteractiveShell":
        return None
    shown: list[Any] = []

    def show(job: RemoteJob) -> None:
        if shown:
            shown[0].update(job)
        else:
            shown.append(ipython.display.display(job, display_id=True))

    return show
