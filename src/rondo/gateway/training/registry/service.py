"""Registered models of a gateway: names in requests and the models that they stand for, registration, load, unload."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import sqlalchemy as sa

from rondo.base.errors import Conflict, Forbidden, InvalidRequest, NotFound, RondoError, Unavailable
from rondo.base.storage.home import jobs_dir
from rondo.base.telemetry.log import get_logger
from rondo.control.jobs.book import JobBook, JobRow
from rondo.control.jobs.registry.book import ModelRegistry
from rondo.control.jobs.registry.facts import files_of, model_of_folder, model_of_job
from rondo.control.jobs.registry.rows import (
    CHECKPOINT,
    HASH,
    LATEST,
    NewModel,
    RegisteredModel,
    check_name,
    checkpoint_name,
)
from rondo.control.key import Key
from rondo.control.store.store import Store
from rondo.gateway.config import GatewayConfig
from rondo.gateway.fleet import Fleet
from rondo.gateway.proxy.upstream import Upstream
from rondo.gateway.routes.security import owner_of
from rondo.gateway.sources.loading import Loading
from rondo.gateway.training.registry.local_jobs import finished_jobs, hashes_of, job_named
from rondo.gateway.training.registry.located import Loadable, RemoteWeights, located
from rondo.gateway.training.registry.remote import files_at
from rondo.jobs.control import check_removable
from rondo.jobs.control import remove as remove_job
from rondo.jobs.folders import aliases_of, find_job, name_of_job, remove_alias
from rondo.jobs.job import Job

log = get_logger("rondo.gateway.registry")

WHOLE_HASH = re.compile(r"[0-9a-f]{64}")
MISSED_SECONDS = 2.0
"""Time for which an unknown name is not looked up again."""
MOST_MISSED = 10_000
UNREACHABLE = (aiohttp.ClientError, TimeoutError, OSError)


class RegistryService:
    """Created within the event loop that serves it."""

    def __init__(
        self, config: GatewayConfig, store: Store, fleet: Fleet, upstream: Upstream, loading: Loading
    ) -> None:
        self.config, self.fleet, self.upstream, self.loading = config, fleet, upstream, loading
        self.book, self._jobs = ModelRegistry(store), JobBook(store)
        self._targets: dict[str, str] = {}
        """Ids by every name that stands for one."""
        self._names: dict[str, list[str]] = {}
        self._sources: dict[str, str] = {}
        """Folders and URLs by id."""
        self._stamp: Any = None
        self._missed: dict[str, float] = {}
        self._adopted: set[str] | None = None
        """Jobs of this machine after their registration was tried."""
        self._hashed = 0
        """Number of the model that was hashed last."""
        self._remote = RemoteWeights(config.jobs.weights_cache_bytes)
        loading.registry = self
        self._tasks = [asyncio.create_task(self._repeated(work)) for work in (self._follow, self._hash_one)]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Names in requests.

    async def resolve(self, model: str) -> str:
        """The name under which the model is served: the id of the model that an alias, a name, `latest` or the
        beginning of a hash stands for, or the text itself."""
        if model in self._targets or model in self._sources:
            return self.target(model)
        if self._served(model):
            return model
        if self._missed.get(model, 0.0) > time.monotonic():
            return model
        match = CHECKPOINT.fullmatch(model)
        if not HASH.fullmatch(model) and match is None and model != LATEST and self._stamp is not None:
            return model
        with suppress(NotFound, InvalidRequest):
            return self.target((await self.find(model)).id)
        if len(self._missed) >= MOST_MISSED:
            self._missed.clear()
        self._missed[model] = time.monotonic() + MISSED_SECONDS
        return model

    def target(self, model: str) -> str:
        """Like `resolve`, without a look-up of hashes."""
        target = self._targets.get(model, model)
        if (
            target in self._sources
            and (pinned := self.loading.pinned_name(self._sources[target])) is not None
        ):
            return pinned
        return model if target == model or self._same(model, target) else target

    def _same(self, name: str, id: str) -> bool:
        """Whether one model is served under both names."""
        cards = (card for engine in list(self.fleet.engines.values()) for card in engine.cards)
        return self.loading.same(name, id) or any(
            {name, id} <= {card["id"], *(card.get("aliases") or ())} for card in cards
        )

    def offers(self, model: str) -> bool:
        """Whether the model is registered under this id."""
        return model in self._sources

    def answers(self, name: str) -> bool:
        """Whether requests for this name reach a model that is registered or that the supervisor loads."""
        return name in self._targets or name in self._sources or name in self.loading.names

    def names(self) -> frozenset[str]:
        return frozenset(self._sources).union(self._targets)

    def names_of(self, id: str) -> list[str]:
        """Names that stand for the model at present."""
        return self._names.get(id, [])

    def cards(self) -> list[dict[str, Any]]:
        """Names that stand for a model, for `/v1/models`."""
        return [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "rondo",
                "parent": None,
                "root": id,
                "aliases": [],
                "loaded": self._ready(self.target(id)),
            }
            for name, id in sorted(self._targets.items())
        ]

    async def find(self, model: str) -> RegisteredModel:
        """The registered model. A job of this machine or one of its checkpoints is registered when it is first
        named."""
        try:
            return await self.book.find(model)
        except NotFound:
            found = await asyncio.to_thread(job_named, model) or await self._of_running(model)
            if found is None:
                raise
        row = await self._add_job(*found)
        await self.refresh()
        return row

    async def _of_running(self, model: str) -> tuple[Job, int, str] | None:
        """A checkpoint of a job whose model gets its name with the job's success."""
        match = CHECKPOINT.fullmatch(model)
        if match is None:
            return None
        with suppress(NotFound):
            row, step = await self._jobs.get(match["model"]), int(match["step"])
            job = None if row.hash is None else Job(jobs_dir() / row.hash)
            if job is not None and row.result and step in await asyncio.to_thread(job.saved_steps):
                return job, step, checkpoint_name(row.result, step)
        return None

    async def _add_job(self, job: Job, step: int | None = None, name: str | None = None) -> RegisteredModel:
        """Registers a model of a job of this machine, for the key that submitted it."""
        new, owner = await asyncio.to_thread(model_of_job, job, step), "local"
        with suppress(NotFound):
            row = await self._jobs.get(job.name)
            owner = row.owner
            if name is None and row.result is not None:
                name = row.result if step is None else checkpoint_name(row.result, step)
        return await self.book.add_of_job(replace(new, name=name or new.name), owner)

    # Registration.

    async def usable(
        self, key: Key, after: str | None, limit: int, **wanted: str | None
    ) -> list[RegisteredModel]:
        """The newest models that the key may use by any of their names, of those that `ModelRegistry.all` selects."""
        found: list[RegisteredModel] = []
        while len(found) < limit:
            rows = await self.book.all(after=after, limit=limit, **wanted)
            found += [row for row in rows if self.is_usable(key, row)]
            if len(rows) < limit:
                break
            after = rows[-1].id
        return found[:limit]

    def is_usable(self, key: Key, row: RegisteredModel) -> bool:
        """Whether the key may use the model by any of its names."""
        return bool(key.usable((row.id, row.name, *self.names_of(row.id))))

    async def register(
        self,
        key: Key,
        job: str | None,
        step: int | None,
        source: str | None,
        name: str | None,
        base: str | None,
    ) -> RegisteredModel:
        if (job is None) == (source is None):
            raise InvalidRequest("Give either a job or a source.", param="job")
        if name is not None:
            check_name(name)
        if job is not None:
            new = await self._of_job(key, job, step)
            if name is not None:
                new = replace(new, name=name)
        else:
            if name is None:
                raise InvalidRequest("name is missing: a model of a folder or URL needs one.", param="name")
            new = await asyncio.to_thread(_of_source, str(source), name, base)
        if name is not None and self._served(name) and self._targets.get(name) is None:
            raise Conflict(
                f"A model that engines serve has the name {name!r}: choose another.",
                param="name",
                code="name_is_taken",
            )
        row: RegisteredModel = await self.book.add(new, key.id)
        await self.refresh()
        return row

    async def _of_job(self, key: Key, name: str, step: int | None) -> NewModel:
        try:
            row = await self._jobs.get(name, owner_of(key))
            hash = row.hash
        except NotFound:
            if owner_of(key) is not None:
                raise
            hash = (await asyncio.to_thread(find_job, name)).name
        if hash is None or not (jobs_dir() / hash).is_dir():
            raise NotFound(f"The job {name!r} has left no model so far.", param="job", code="no_model")
        job = Job(jobs_dir() / hash)
        if step is not None and step not in await asyncio.to_thread(job.saved_steps):
            raise NotFound(
                f"The job {job.label} has no checkpoint of step {step}.", param="step", code="no_checkpoint"
            )
        return await asyncio.to_thread(model_of_job, job, step)

    async def point(self, alias: str, model: str, key: Key) -> RegisteredModel:
        row = await self.find(model)
        if not key.usable((model, row.id, row.name, *self.names_of(row.id))):
            key.may_use(row.id)
        if self._served(alias) and alias not in self._targets:
            raise Conflict(
                f"A model has the name {alias!r}: choose another alias.", param="alias", code="name_is_taken"
            )
        found: RegisteredModel = await self.book.point(alias, row.id, owner_of(key))
        await self.refresh()
        return found

    async def remove(self, model: str, owner: str | None) -> RegisteredModel:
        row: RegisteredModel = await self.book.remove(model, owner)
        with suppress(RondoError):
            await self.unload(row)
        await self.refresh()
        return row

    async def delete(self, row: JobRow) -> None:
        """Deletes the result of a job with its checkpoints and the job's folder. A folder with further names stays."""
        job, result = Job(jobs_dir() / str(row.hash)), str(row.result)
        others = {name_of_job(job.path), *aliases_of(job.path)} - {result, ""}
        for model in await self.book.all(job=row.hash):
            if model.step is None:
                removed = await self.book.remove_result(model.id, result, others)
            elif removed := not others or model.name.partition(":ckpt-step-")[0] == result:
                await self.book.remove(model.id, None)
            if removed:
                with suppress(RondoError):
                    await self.unload(model)
        await self.refresh()
        if others:
            await asyncio.to_thread(remove_alias, job.path, result)
        elif job.path.is_dir():
            await asyncio.to_thread(check_removable, job)
            await asyncio.to_thread(remove_job, job)

    def require_owner(self, row: RegisteredModel, key: Key) -> None:
        owner = owner_of(key)
        if owner is not None and row.owner != owner:
            raise Forbidden(f"The model {row.id} belongs to another key.", param="model", code="not_owner")

    # Load and unload.

    async def ensure(self, id: str) -> None:
        if not self._ready(self.target(id)) and not await self.loading.ensure(id):
            raise Unavailable(
                f"No engine can load the model {id}: start the gateway with `rondo up`, or register an engine that "
                "serves its base.",
                param="model",
                code="no_engine",
            )

    async def locate(self, model: str) -> Loadable | None:
        """Place of a model for the supervisor, whose own list may lack it."""
        if model not in self._sources:
            return None
        row = await self.book.find(model)
        if row.kind == "reward":
            raise InvalidRequest(
                f"{model} is a reward model, which returns scores: use it as `reward_model.model` of a job.",
                param="model",
                code="reward_model",
            )
        return await asyncio.to_thread(located, row, self._remote)

    async def load_adapter(self, model: str) -> bool:
        """Loads an adapter into the registered engines that serve its base. False if there is none."""
        place = await self.locate(model)
        if place is None or not place["adapter"]:
            return False
        bases = {str(place["base"]), str(place["base"]).rpartition("/")[2]}
        engines = [each for each in self.fleet.engines.values() if each.instance.healthy]
        loaded = False
        for engine in engines:
            if not bases & engine.instance.models:
                continue
            body = {"lora_name": model, "lora_path": place["adapter"]}
            url = engine.instance.url
            try:
                status, answer = await self.upstream.administer(
                    f"{url}/v1/load_lora_adapter",
                    self.config.engine_key or "",
                    body,
                    self.config.load_seconds,
                )
            except UNREACHABLE as error:
                raise Unavailable(f"The engine {engine.id} did not answer: {error}", param="model") from error
            if status != 200:
                raise Unavailable(
                    f"The engine {engine.id} does not load {model}: {_said(answer)}", param="model"
                )
            await self.fleet.check_models(url)
            loaded = True
        return loaded

    async def unload(self, row: RegisteredModel) -> None:
        if self.config.supervisor is not None:
            if self.loading.offers(row.id):
                await self.loading.unload(row.id)
            return
        for engine in list(self.fleet.engines.values()):
            if row.id in engine.instance.models:
                url = engine.instance.url
                with suppress(*UNREACHABLE):
                    key = self.config.engine_key or ""
                    body = {"lora_name": row.id}
                    await self.upstream.administer(f"{url}/v1/unload_lora_adapter", key, body, 60.0)
                    await self.fleet.check_models(url)

    def state_of(self, row: RegisteredModel) -> tuple[str, str | None]:
        """State and error of a model."""
        if row.kind == "reward":
            return "scoring", None
        names = {row.id, self.target(row.id)}
        names |= {name for name in self.names_of(row.id) if self._same(name, row.id)}
        if any(map(self._ready, names)):
            return "ready", None
        known = self.loading.row_of(row.id)
        return (known["state"], known["error"]) if known is not None else ("unloaded", None)

    def parent_of(self, row: RegisteredModel) -> str | None:
        """Id of the base, if it is registered."""
        base, folder = row.base, str(row.lineage.get("base_folder") or "")
        named = Path(folder).parent.name if folder else ""
        candidates = (named, base or "", self._targets.get(base or "", ""))
        return next((each for each in candidates if each in self._sources and each != row.id), None)

    # Maintenance.

    async def refresh(self) -> None:
        """Reads the names again."""
        self._stamp, self._targets, self._sources = await self.book.snapshot()
        names = defaultdict[str, list[str]](list)
        for name, id in self._targets.items():
            names[id].append(name)
        self._names = dict(names)
        self._missed.clear()

    async def _repeated(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except (RondoError, sa.exc.SQLAlchemyError, OSError, ValueError, KeyError) as error:
                reason = f"{type(error).__name__}: {error}"[:300]
                log.warning("the registry is not maintained", extra={"error": reason})
            await asyncio.sleep(self.config.poll_seconds)

    async def _follow(self) -> None:
        """Reads changed names, and registers jobs that the gateway did not start."""
        if await self.book.stamp() != self._stamp:
            await self.refresh()
        listed = {name for name in self.loading.names if WHOLE_HASH.fullmatch(name)}
        if self._adopted is None:
            listed |= await asyncio.to_thread(finished_jobs)
        new = listed - (self._adopted or set())
        self._adopted = (self._adopted or set()) | new
        await self._adopt(new)

    async def _adopt(self, hashes: set[str]) -> None:
        """Registers finished jobs of this machine that the gateway did not start. A job of the gateway is registered
        with its success, under the name of its result."""
        own = await asyncio.to_thread(hashes_of, await self._jobs.unended()) if hashes else set()
        for hash in sorted(hashes - own - self._sources.keys()):
            with suppress(RondoError):
                job = Job(jobs_dir() / hash)
                if job.path.is_dir():
                    await self._add_job(job)

    async def _hash_one(self) -> None:
        """Hashes the files of the next model whose digest is unknown. Models without files are tried again after all
        others."""
        rows = await self.book.unhashed(self._hashed)
        if not rows:
            self._hashed = 0
        for row in rows:
            self._hashed = row.number
            files = await asyncio.to_thread(_files, row)
            if files:
                await self.book.note(row.id, files)
                return

    def _served(self, name: str) -> bool:
        """Whether engines serve a model of this name, or can load it without the registry."""
        engines = list(self.fleet.engines.values())
        return name in self.loading.names or any(name in each.instance.models for each in engines)

    def _ready(self, name: str) -> bool:
        engines = list(self.fleet.engines.values())
        return any(name in each.instance.models and each.instance.healthy for each in engines)


def _of_source(source: str, name: str, base: str | None) -> NewModel:
    if "://" not in source:
        return model_of_folder(Path(source).expanduser().absolute(), name, base)
    kind, files, digest, found = files_at(source)
    return NewModel(
        name,
        digest,
        kind,
        source.rstrip("/"),
        base=base or found,
        files=files,
        lineage={"base": base or found},
    )


def _files(row: RegisteredModel) -> dict[str, tuple[int, str]]:
    folder = Path(row.source)
    if "://" in row.source or not folder.exists():
        return {}
    return files_of(folder)


def _said(answer: str) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(answer)["error"]["message"])
    return answer[:300]
