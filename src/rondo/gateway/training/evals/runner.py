"""Moves eval runs from state to state: loads the data source, fills the queue, grades samples.

One gateway at a time drives a run, by a duty that it renews. After a crash another one, or the same, continues: loaded
items, queued requests and results are in the store, and each step can be repeated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import Conflict, InvalidRequest, NotFound, RondoError, StorageError, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.client.protocol.item import item_text, read_refusal, read_result, with_model
from rondo.control.key import Key
from rondo.control.keys import Keys
from rondo.control.objects.eval_runs import SIGNAL, EvalRuns, GradedItem, StoredItem, StoredRun
from rondo.control.objects.evals import Evals, StoredEval
from rondo.control.queue.views import QueuedRow
from rondo.control.queue.work import New
from rondo.control.store.clock import microseconds
from rondo.control.store.signals import until_changed
from rondo.gateway.queued.objects import Objects
from rondo.gateway.training.evals import sources
from rondo.gateway.training.evals.judging import Criterion, criteria_of, judge
from rondo.gateway.training.evals.requests import (
    CompletionsSource,
    FileContent,
    FileId,
    JsonlSource,
    RunSource,
    SampledSource,
    StoredCompletions,
    parsed_source,
)
from rondo.gateway.training.evals.sampling import CHAT, RESPONSES, messages_of, path_and_body, sample_of
from rondo.gateway.training.judges import Judges, Usage

log = get_logger("rondo.gateway.evals")

LOADED, QUEUED, GRADED = 500, 200, 32
"""Items of one transaction that loads, queues or grades them."""
DUTY_SECONDS = 15.0
AT_ONCE = 4
"""Runs that a gateway drives at the same time."""
WAIT_SECONDS = 3.0
"""Longest wait for a result; the duty is renewed afterwards."""


class _Lost(Exception):
    """The run was changed or deleted, or another gateway drives it: this one leaves it alone."""


class EvalRunner:
    """Created within the event loop that serves it."""

    def __init__(self, objects: Objects, keys: Keys, judges: Judges) -> None:
        self.objects, self.keys, self.judges = objects, keys, judges
        self.store, self.queue = objects.store, objects.queue
        self.evals, self.runs = Evals(objects.store), EvalRuns(objects.store)
        self._driven: dict[str, asyncio.Task[None]] = {}
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Runs continue in the next gateway."""
        tasks = [self._task, *self._driven.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                with self.store.signals.waiting([SIGNAL]) as changed:
                    await self._start()
                    await until_changed(changed, self.objects.config.batches.poll_seconds)
            except (RondoError, sa.exc.SQLAlchemyError, OSError) as error:
                log.warning("eval runs are not driven", extra={"error": str(error)[:300]})
                await asyncio.sleep(1.0)
            except Exception:
                log.exception("eval runs are not driven")
                await asyncio.sleep(1.0)

    async def _start(self) -> None:
        self._driven = {id: task for id, task in self._driven.items() if not task.done()}
        unended = await self.runs.unended()
        for run in unended:
            if run.id not in self._driven and len(self._driven) < AT_ONCE:
                self._driven[run.id] = asyncio.create_task(self._drive(run))

    async def _drive(self, run: StoredRun) -> None:
        try:
            if not await self.store.claim(_duty(run), DUTY_SECONDS):
                return
            run = await self.runs.get(run.id, run.eval, None)
            if run.ended is None:
                await Drive(self, run).run()
        except _Lost:
            return
        except (Unavailable, StorageError) as error:
            log.warning("an eval run waits", extra={"run": run.id, "error": error.message})
            await asyncio.sleep(1.0)
        except RondoError as error:
            await self._fail(run, error)
        except Exception:
            log.exception("an eval run cannot be driven", extra={"run": run.id})
            await asyncio.sleep(1.0)

    async def _fail(self, run: StoredRun, error: RondoError) -> None:
        told = json.dumps({"code": error.code or "invalid_request", "message": error.message})
        with suppress(NotFound):  # the run was deleted
            found = await self.runs.get(run.id, run.eval, None)
            await self.runs.change(found, state="failed", error=told, ended=microseconds())
            await self.drop(found.queued_as)

    async def drop(self, group: str | None) -> None:
        """Cancels queued requests of a run that was canceled, has failed or was deleted."""
        if group is not None:
            with suppress(NotFound):
                await self.queue.queue.cancel(group)


class Drive:
    """One run, from its present state to its end."""

    def __init__(self, runner: EvalRunner, run: StoredRun) -> None:
        self.runner, self.current = runner, run
        self.runs, self.queue, self.objects = runner.runs, runner.queue.queue, runner.objects
        self.source: RunSource = parsed_source(run.source)

    async def run(self) -> None:
        eval = await self.runner.evals.get(self.current.eval, None)
        key = await self._key()
        if self.current.state == "queued":
            await self._load(eval, key)
        criteria = await asyncio.to_thread(criteria_of, eval.graders)
        with self.runner.judges.of(key) as judged:
            while self.current.graded < self.current.total:
                await self._renew()
                if self.current.model:
                    await self._fill()
                await self._grade(criteria, judged)
        await self._seal()
        await self._change(state="completed", ended=microseconds())

    async def _key(self) -> Key:
        """The key that submitted the run, as it is: a revoked key ends its runs."""
        key = await self.runner.keys.get(self.current.owner)
        key.may("jobs")
        if self.current.model:
            key.may_use(self.current.model)
        return key

    async def _renew(self) -> None:
        if not await self.runner.store.claim(_duty(self.current), DUTY_SECONDS):
            raise _Lost

    async def _load(self, eval: StoredEval, key: Key) -> None:
        schema = eval.config.get("item_schema") or {}
        owner = None if key.rights.role == "admin" else key.id
        records = await self._records(eval, owner)
        place = self.current.total
        while chunk := await asyncio.to_thread(lambda: list(islice(records, LOADED))):
            for number, record in enumerate(chunk):
                self._check(record, schema, place + number)
            await self._renew()
            texts = [(json.dumps(each["item"]), _json(each.get("sample"))) for each in chunk]
            self._now(await self.runs.add(self.current, texts))
            place += len(chunk)
        if not self.current.total:
            raise InvalidRequest("The data source has no item.", param="data_source")
        await self._change(state="in_progress")

    def _check(self, record: Mapping[str, Any], schema: Mapping[str, Any], place: int) -> None:
        sources.check_item(record, schema, place)
        if not isinstance(self.source, JsonlSource) and self.source.model:
            messages_of(self.source, record["item"])
        if place >= sources.MOST_ITEMS:
            raise Conflict(
                f"The data source has more than {sources.MOST_ITEMS:,} items.", code="too_many_items"
            )

    async def _records(self, eval: StoredEval, owner: str | None) -> Iterator[sources.Record]:
        """Records to be stored."""
        source = self.source.source
        found: Iterable[sources.Record]
        if isinstance(source, FileContent):
            found = (each.model_dump() for each in source.content)
        elif isinstance(source, FileId):
            file = await self.objects.files.get(source.id, owner)
            found = sources.lines_of(self.objects.blobs.kept(file.id))
        elif isinstance(source, StoredCompletions):
            metadata = eval.config.get("metadata")
            found = sources.completions_of(self.objects.completions, owner, source, metadata)
        else:
            metadata = eval.config.get("metadata")
            found = sources.responses_of(self.objects.responses, owner, source, metadata)
        return islice(found, self.current.total, None)

    async def _fill(self) -> None:
        """Puts the next requests into the queue."""
        if self.current.queued_as is None:
            group = await self.queue.put([], self.current.owner, key=f"eval {self.current.id}", sealed=False)
            await self._change(queued_as=group.name)
        assert self.current.queued_as is not None
        there = (await self.queue.group(self.current.queued_as)).total
        if there >= self.current.total:
            return
        items = await self.runs.items(self.current.id, there, QUEUED)
        prompts = [self._prompt(each) for each in items]
        await self.queue.extend(self.current.queued_as, there, prompts)

    def _prompt(self, item: StoredItem) -> New:
        assert not isinstance(self.source, JsonlSource)
        path, body = path_and_body(self.source, json.loads(item.item))
        target = self.runner.queue.loading.target(str(self.current.model))
        body = body if target == self.current.model else with_model(body, target)
        return New(target, item_text(path, body), self.objects.config.batches.priority)

    async def _grade(self, criteria: list[Criterion], judged: Usage) -> None:
        begin, number, rows = self.current.graded, GRADED, list[QueuedRow | None]()
        if self.current.queued_as is not None:
            name = self.current.queued_as
            rows = [*await self.runner.queue.results(name, begin - 1, GRADED, WAIT_SECONDS)]
            number = len(rows)
        items = await self.runs.items(self.current.id, begin, number) if number else []
        if not items:
            return
        judged.clear()
        rows = rows or [None] * len(items)
        pairs = zip(items, rows, strict=True)
        graded = await asyncio.gather(*(self._one(criteria, item, row) for item, row in pairs))
        usage = merged([judged, *(_usage_of(each.sample) for each in graded if self.current.model)])
        self._now(await self.runs.grade(self.current, graded, usage))

    async def _one(self, criteria: list[Criterion], item: StoredItem, row: QueuedRow | None) -> GradedItem:
        record = json.loads(item.item)
        if row is None:
            sample = {} if item.sample is None else json.loads(item.sample)
            asked = record.get("input")
            sample = {**sample, "input": asked if isinstance(asked, list) else []}
        else:
            assert not isinstance(self.source, JsonlSource)
            sample = _sampled(self.source, row)
            sample["input"] = messages_of(self.source, record)
            if "error" in sample:
                return GradedItem(item.place, "error", sample)
        status, results = await judge(criteria, record, sample)
        return GradedItem(item.place, status, sample, results)

    async def _seal(self) -> None:
        """Until here the group has not ended, so that none of its results is pruned before it is graded."""
        if self.current.queued_as is not None:
            with suppress(Conflict, NotFound):  # sealed before
                await self.queue.extend(self.current.queued_as, self.current.total, [], seal=True)

    async def _change(self, **changes: Any) -> None:
        self._now(await self.runs.change(self.current, **changes))

    def _now(self, changed: StoredRun | None) -> None:
        if changed is None:
            raise _Lost
        self.current = changed


def _sampled(source: SampledSource, row: QueuedRow) -> dict[str, Any]:
    """Sample of an ended request, or its `error`."""
    path = CHAT if isinstance(source, CompletionsSource) else RESPONSES
    if row.state == "done" and row.result is not None:
        answer = read_result(row.result)
        body = json.loads(bytes(answer.body))
        if answer.status < 400 and isinstance(body, dict):
            return sample_of(path, body)
        return {"error": {"code": "sampling_failed", "message": str(body)[:1000]}}
    if row.state == "cancelled":
        return {"error": {"code": "cancelled", "message": "The request was removed from the queue."}}
    refusal = read_refusal(row.reason or "")
    told = row.reason if refusal is None else bytes(refusal.body).decode(errors="replace")
    return {"error": {"code": "sampling_failed", "message": (told or "The request failed.")[:1000]}}


def _usage_of(sample: Mapping[str, Any]) -> Usage:
    usage = sample.get("usage")
    return {str(sample.get("model")): {"invocation_count": 1, **usage}} if usage else {}


def merged(usages: Iterable[Usage]) -> Usage:
    """Sums of token counts by model."""
    sums: Usage = {}
    for usage in usages:
        for model, counts in usage.items():
            known = sums.setdefault(model, {})
            for name, number in counts.items():
                known[name] = known.get(name, 0) + number
    return sums


def _duty(run: StoredRun) -> str:
    return f"eval run {run.id}"


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value)
