"""The reconciler: compares the rows of jobs with the processes that their launchers report, and acts on differences."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rondo.base.errors import ConfigError, InvalidRequest, RondoError, Unavailable
from rondo.base.process import exit_reason
from rondo.base.storage.home import jobs_dir
from rondo.base.telemetry.log import get_logger
from rondo.control.config import JobsConfig
from rondo.control.jobs.beats import late_ranks
from rondo.control.jobs.book import SIGNAL, JobBook, JobRow
from rondo.control.jobs.displaced import avoided_nodes, record_displaced
from rondo.control.jobs.launchers.folder import SECRETS, AttemptFolder
from rondo.control.jobs.launchers.launcher import Attempt, AttemptState, Launcher
from rondo.control.jobs.order import in_turn, reserve, rooms_of
from rondo.control.jobs.registry.book import ModelRegistry
from rondo.control.jobs.registry.facts import model_of_job
from rondo.control.keys import Keys
from rondo.control.store.signals import until_changed
from rondo.jobs.folders import add_alias, remove_alias
from rondo.jobs.job import Job
from rondo.jobs.spec import PLAIN

log = get_logger("rondo.jobs")

DUTY = "jobs"
DUTY_SECONDS = 15.0
SHORTEST_PERIOD = 0.25
"""Time between the starts of two passes, however many jobs are submitted."""
TOGETHER = 50
"""Attempts whose states are read at once, in one thread."""
LATE = "Late heartbeats"
PERMANENT = frozenset([2, 3, 4])
"""Exit codes of wrong settings, unusable models and missing files: another attempt would end in the same way."""
BUSY = "job_is_running"
"""Code of the error when another process works on the same folder. It is no failure."""


class Reconciler:
    """`registered` is called when a model was added to the registry, before its job has succeeded."""

    def __init__(
        self,
        book: JobBook,
        launchers: Mapping[str, Launcher],
        config: JobsConfig,
        registered: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.book, self.launchers, self.config, self.registered = book, launchers, config, registered
        self.keys = Keys(book.store)
        self.models = ModelRegistry(book.store)
        self._claimed: dict[str, float] = {}
        """When the duty of each launcher was claimed, by the monotonic clock."""
        self._watched: dict[str, float] = {}
        """When the heartbeats of each job were read, by the monotonic clock."""
        self._silent: dict[tuple[str, int], dict[str, Any]] = {}
        """Errors of killed attempts because a rank was silent."""
        self._noted: dict[str, str] = {}
        """Last remark of a scheduler about each job."""
        self._stopped: dict[tuple[str, int], float] = {}
        """Time of the signal to end, by the monotonic clock."""

    async def run(self) -> None:
        """Passes for as long as the task lives; one gateway at a time performs them for each launcher."""
        while True:
            begun = time.monotonic()
            with self.book.store.signals.waiting([SIGNAL]) as changed:
                try:
                    await self.reconcile()
                except Exception as error:
                    _report("jobs are not reconciled", error)
                took = time.monotonic() - begun
                await until_changed(changed, self.config.poll_seconds)
            # A pass that takes long leaves the other half of the time to requests.
            await asyncio.sleep(
                max(begun + SHORTEST_PERIOD - time.monotonic(), min(took, self.config.poll_seconds))
            )

    async def reconcile(self) -> None:
        """One pass over the jobs that have not ended, or whose process may still exist."""
        mine = {name: each for name, each in self.launchers.items() if await self._on_duty(name)}
        rows = [row for row in await self.book.launched() if row.launcher in mine] if mine else []
        for begin in range(0, len(rows), TOGETHER):
            some = [row for row in rows[begin : begin + TOGETHER] if row.launcher in mine]
            for row, seen in zip(some, await asyncio.to_thread(self._look, some), strict=True):
                await self._follow_one(row, seen, mine)
        if mine:
            await self._start_waiting(mine)

    def _look(self, rows: Sequence[JobRow]) -> list[AttemptState | Exception]:
        """States of the attempts, or their errors. A scheduler that does not respond gets one request."""
        found, down = list[AttemptState | Exception](), dict[str, Unavailable]()
        for row in rows:
            try:
                if row.launcher in down:
                    found.append(down[row.launcher])
                else:
                    found.append(self.launchers[row.launcher].look(row.id, row.attempt))
            except Unavailable as error:
                down[row.launcher] = error
                found.append(error)
            except Exception as error:  # of this job's files
                found.append(error)
        return found

    async def _follow_one(
        self, row: JobRow, seen: AttemptState | Exception, mine: dict[str, Launcher]
    ) -> None:
        """Removes a launcher from `mine` whose scheduler does not answer. Errors of one job stop no other."""
        if row.launcher not in mine:
            return
        try:
            if isinstance(seen, Exception):
                raise seen
            await self._follow(row, seen)
        except Unavailable as error:
            _report("jobs of a launcher are not reconciled", error, row)
            del mine[row.launcher]
        except Exception as error:
            _report("job is not reconciled", error, row)

    async def _on_duty(self, launcher: str) -> bool:
        """Whether this gateway performs the passes of the launcher. The claim, a synced write, is renewed in time."""
        now = time.monotonic()
        if now - self._claimed.get(launcher, -DUTY_SECONDS) > DUTY_SECONDS / 3:
            mine = await self.book.store.claim(f"{DUTY} {self.launchers[launcher].name}", DUTY_SECONDS)
            self._claimed[launcher] = now if mine else -DUTY_SECONDS
            return mine
        return True

    async def _start_waiting(self, mine: Mapping[str, Launcher]) -> None:
        active = await self.book.launched()
        rooms = rooms_of(mine, active)
        if not rooms:
            return
        waiting = await self.book.waiting(rooms)
        reserve(rooms, waiting)
        shares = Counter(row.owner for row in active)
        for row in in_turn(waiting, shares):
            room = rooms.get(row.launcher)
            if room is None or not room.fits(row):
                continue
            if not await self._on_duty(row.launcher):
                return
            try:
                started = await self._start(row)
            except Unavailable:  # the scheduler is down
                started = None
                del rooms[row.launcher]
            if started is None:
                continue
            room.add(started)
            shares[row.owner] += 1
            if room.full:
                del rooms[row.launcher]
            if not rooms:
                return

    async def _start(self, row: JobRow) -> JobRow | None:
        number = row.attempt + 1
        message = f"Attempt {number} starts." if row.attempt else "Job starts."
        avoid = await asyncio.to_thread(avoided_nodes, row.id) if row.attempt else ()
        if avoid:
            message += f" It avoids nodes with a fault: {', '.join(avoid)}."
        begun = await self.book.move(row, "starting", message, attempt=number, launched=True)
        if begun is None:
            return None
        try:
            attempt = Attempt(begun.id, number, begun.spec, await self._environment(begun), avoid)
            await asyncio.to_thread(self.launchers[row.launcher].start, attempt)
        except Unavailable as error:
            reason = f"Attempt {number} could not start: {error.message.rstrip('.')}."
            await self._again(begun, reason, 1, {"launched": False})
            raise
        except Exception as error:
            _report("job cannot start", error, row)
            reason = error.message if isinstance(error, RondoError) else repr(error)
            code = error.exit_code if isinstance(error, InvalidRequest | ConfigError) else None
            await self._lost(begun, f"Attempt {number} could not start: {reason.rstrip('.')}.", code)
            return None
        return begun

    async def _environment(self, row: JobRow) -> dict[str, str]:
        """Variables of the job: keys of other services if its owner may use them, and a key to this gateway's models
        for judges and programs."""
        env = {}
        if {row.owner, "*"} & set(self.config.secret_keys):
            env = {name: os.environ[name] for name in SECRETS if name in os.environ}
        if self.config.gateway_url is not None and row.kind in ("rl", "script"):
            text = await self.keys.delegate(row.owner, f"job {row.id}")
            env |= {"RONDO_BASE_URL": self.config.gateway_url, "RONDO_API_KEY": text}
        return env

    async def _follow(self, row: JobRow, seen: AttemptState) -> None:
        if seen.phase not in ("waiting", "running"):
            self._stopped.pop((row.id, row.attempt), None)
            self._noted.pop(row.id, None)
            self._watched.pop(row.id, None)
            await self._ended(row, seen, self._silent.pop((row.id, row.attempt), None))
            if self.launchers[row.launcher].leaves_objects:
                await self._clean(row)
            return
        if row.final or row.state == "pausing":
            await self._stop(row)
        elif seen.detail and self._noted.get(row.id) != seen.detail:
            self._noted[row.id] = seen.detail
            await self.book.remark(row, f"{seen.detail}.")
        if row.state == "starting" and seen.phase == "running":
            await self._learn(row)
        elif row.state == "running" and seen.phase == "running":
            await self._watch(row)

    async def _learn(self, row: JobRow) -> None:
        """The job runs once its process has computed the hash."""
        hash = row.spec.digest if row.kind in PLAIN else None
        hash = hash or AttemptFolder.of(row.id, row.attempt).report().get("hash")
        if hash is not None:
            await self.book.move(row, "running", "Job is running.", hash=hash)

    async def _watch(self, row: JobRow) -> None:
        """Reports ranks without a heartbeat, and ends an attempt whose ranks stay silent."""
        now, limit = time.monotonic(), self.config.silent_seconds
        if now - self._watched.get(row.id, 0.0) < limit / 8:
            return
        self._watched[row.id] = now
        late = await asyncio.to_thread(late_ranks, AttemptFolder.of(row.id, row.attempt).path, limit)
        if not late:
            return
        others = f", and {len(late) - 1} other ranks" if len(late) > 1 else ""
        await self.book.remark(row, f"{LATE}: rank {late[0].rank} on {late[0].host}{others}.", "warn")
        if late[0].silent > 2 * limit:
            error = {"message": f"{late[0]}{others}", "param": None, "code": "rank_silent"}
            self._silent[row.id, row.attempt] = error
            await asyncio.to_thread(self.launchers[row.launcher].stop, row.id, row.attempt, kill=True)

    async def _stop(self, row: JobRow) -> None:
        """Asks once, and kills the process when its time is over."""
        key, now = (row.id, row.attempt), time.monotonic()
        launcher = self.launchers[row.launcher]
        if key not in self._stopped:
            if await asyncio.to_thread(launcher.stop, *key):
                self._stopped[key] = now
        elif now - self._stopped[key] > self.config.grace_seconds:
            await asyncio.to_thread(launcher.stop, *key, kill=True)

    async def _ended(self, row: JobRow, seen: AttemptState, silent: dict[str, Any] | None) -> None:
        if row.kind in ("rl", "script"):
            await self.keys.end_delegation(f"job {row.id}")
        folder = AttemptFolder.of(row.id, row.attempt)
        report = folder.report()
        hash = report.get("hash") or row.hash
        facts: dict[str, Any] = {"launched": self.launchers[row.launcher].leaves_objects, "hash": hash}
        if row.final or row.state in ("queued", "paused"):
            if row.state == "cancelled" and row.result is not None and hash:
                await asyncio.to_thread(remove_alias, jobs_dir() / hash, row.result)
            await self.book.note(row, **facts)
            return
        error = report.get("error") or silent or {}
        code = error.get("exit_code", seen.code)
        job = Job(jobs_dir() / hash) if hash else None
        status = job.status() if job else {}
        # The folder may have the state of an attempt before this one.
        fresh = job is not None and folder.wrote(job.path / "status.json")
        if seen.code == 0 and status.get("state") == "succeeded" and (fresh or "hash" in report):
            await self._succeeded(row, str(hash), facts)
        elif row.kind in PLAIN and seen.code == 0 and row.state != "pausing":
            await self.book.move(row, "succeeded", "Job succeeded.", **facts | {"hash": row.spec.digest})
        elif code in PERMANENT or (row.kind in PLAIN and seen.phase == "ended" and row.state != "pausing"):
            await self._failed(row, _error(row, seen, error), facts, permanent=True)
        elif row.state == "pausing":
            await self.book.move(row, "paused", "Job is paused.", **facts)
        elif seen.phase == "cancelled" and silent is None:
            await self.book.move(row, "cancelled", f"{seen.detail} by an operator.", **facts)
        elif seen.phase == "displaced":
            await self._displaced(row, seen, job, facts)
        elif seen.phase == "absent":  # the gateway ended between the change of the state and the start
            await self._again(row, f"Attempt {row.attempt}: {seen.detail}.", 1, facts)
        elif seen.phase == "ended" and status.get("state") == "paused" and fresh:
            message = "The process received SIGTERM and saved a checkpoint; the job continues from it."
            await self.book.move(row, "queued", message, **facts)
        elif error.get("code") == BUSY:
            await self._again(row, str(error["message"]), row.attempt - row.failures, facts)
        else:
            await self._failed(row, _error(row, seen, error), facts)

    async def _clean(self, row: JobRow) -> None:
        """Deletes the objects of an attempt whose end is recorded. A later pass repeats a failed deletion."""
        recorded = await self.book.get(row.id)
        settled = row.final or row.state in ("queued", "paused")
        # A job that was cancelled meanwhile has its end recorded by the next pass.
        if settled or recorded.state not in (row.state, "cancelled"):
            await asyncio.to_thread(self.launchers[row.launcher].clean, row.id, row.attempt)
            await self.book.note(recorded, launched=False)

    async def _displaced(
        self, row: JobRow, seen: AttemptState, job: Job | None, facts: dict[str, Any]
    ) -> None:
        """Queues another attempt, unless many in a row have saved no new checkpoint."""
        count = await asyncio.to_thread(record_displaced, row.id, row.attempt, job, seen.nodes)
        reason = f"Attempt {row.attempt} has ended: {seen.detail.rstrip('.')}."
        if count < self.config.displacements:
            reason += " The job continues from its checkpoint."
            await self._again(row, reason, row.attempt - row.failures, facts)
            return
        message = (
            f"{reason} {count} attempts in a row were displaced and saved no new checkpoint: save more often, or raise "
            "gateway.jobs.displacements."
        )
        error = {"message": message, "param": None, "code": "job_displaced"}
        await self._failed(row, error, facts, permanent=True)

    async def _succeeded(self, row: JobRow, hash: str, facts: dict[str, Any]) -> None:
        if row.result is not None:
            await asyncio.to_thread(add_alias, jobs_dir() / hash, row.result)
        await self._register(row, hash)
        ended = await self.book.move(row, "succeeded", "Job succeeded.", **facts)
        if ended is None and row.result is not None:  # it was cancelled meanwhile
            await asyncio.to_thread(remove_alias, jobs_dir() / hash, row.result)

    async def _register(self, row: JobRow, hash: str) -> None:
        """Adds the job's model to the registry."""
        try:
            model = await asyncio.to_thread(model_of_job, Job(jobs_dir() / hash))
            await self.models.add_of_job(replace(model, name=row.result or model.name), row.owner)
            if self.registered is not None:
                await self.registered()
        except RondoError as error:
            _report("the model of a job is not registered", error, row)

    async def _failed(
        self,
        row: JobRow,
        error: dict[str, Any],
        facts: dict[str, Any],
        permanent: bool = False,
    ) -> None:
        failures = row.failures + 1
        if permanent or failures >= self.config.attempts:
            text, message = json.dumps(error), str(error["message"])
            await self.book.move(row, "failed", message, error=text, failures=failures, **facts)
            return
        await self._again(row, str(error["message"]), failures, {**facts, "failures": failures})

    async def _lost(self, row: JobRow, reason: str, code: int | None) -> None:
        """A failure without a process."""
        error = {"message": reason, "param": None, "code": "job_failed"}
        await self._failed(row, error, {"launched": False}, permanent=code in PERMANENT)

    async def _again(self, row: JobRow, reason: str, times: int, facts: dict[str, Any]) -> None:
        """Queues another attempt after a pause that doubles with each time."""
        pause = min(self.config.retry_seconds * 2 ** min(times - 1, 30), self.config.longest_retry_seconds)
        message = f"{reason} Another attempt starts in {pause:.0f} s."
        await self.book.move(row, "queued", message, pause=pause, **facts)


def _error(row: JobRow, seen: AttemptState, reported: dict[str, Any]) -> dict[str, Any]:
    """`message`, `param` and `code` of the failed attempt."""
    if reported:
        return {key: reported.get(key) for key in ("message", "param", "code")}
    code = seen.code or 0
    ended = exit_reason(128 - code if 128 < code <= 192 else code)  # as a shell reports a signal
    last = AttemptFolder.of(row.id, row.attempt).last_lines().splitlines()
    message = f"Attempt {row.attempt} failed: {seen.detail or f'the process {ended}'}."
    return {
        "message": f"{message} {last[-1][:500] if last else ''}".strip(),
        "param": None,
        "code": "job_failed",
    }


def _report(message: str, error: Exception, row: JobRow | None = None) -> None:
    extra = {"error": str(error)} | ({} if row is None else {"job": row.id})
    if isinstance(error, RondoError):
        log.warning(message, extra=extra)
    else:
        log.exception(message, extra=extra, exc_info=error)
