"""The jobs of a gateway: its book, launchers and reconciler."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import InvalidRequest, RondoError
from rondo.base.storage.hashing import sha256_json
from rondo.base.storage.home import jobs_dir
from rondo.base.telemetry.log import get_logger
from rondo.control.jobs.book import JobBook, JobRow
from rondo.control.jobs.launchers.choice import launchers_of
from rondo.control.jobs.launchers.launcher import Launcher, Node
from rondo.control.jobs.reconcile import Reconciler
from rondo.control.key import Key
from rondo.control.store.store import Store
from rondo.gateway.config import GatewayConfig
from rondo.gateway.queued.objects import Objects
from rondo.gateway.routes.security import owner_of
from rondo.gateway.training.graders import with_embedding_model
from rondo.gateway.training.inputs import (
    input_of,
    model_state,
    old_inputs,
    pairs_of,
    remove_input,
    with_plan,
)
from rondo.gateway.training.registry.service import RegistryService
from rondo.gateway.training.scalarlm.publish import ModelPublisher
from rondo.gateway.training.settings import check
from rondo.jobs.spec import PLAIN, JobSpec

log = get_logger("rondo.gateway.training")

SWEEP_SECONDS = 3600.0
KEPT_SECONDS = 3600.0
"""Age of an input without a job at which it is removed: a submission may be about to use a younger one."""


class Training:
    """Created within the event loop that serves it."""

    def __init__(
        self, config: GatewayConfig, store: Store, objects: Objects, registry: RegistryService
    ) -> None:
        self.config, self.objects = config, objects
        self.book = JobBook(store)
        told = config.jobs
        self.named = launchers_of(told)
        """Launchers by the values of `jobs.launcher`."""
        self.launchers = {each.name: each for each in self.named.values()}
        self.publisher = ModelPublisher()
        reconciled = told.model_copy(update={"gateway_url": told.gateway_url or own_url(config)})
        reconciler = Reconciler(self.book, self.launchers, reconciled, registry.refresh)
        self._tasks = [asyncio.create_task(work) for work in (reconciler.run(), self._sweep())]

    async def file(self, id: str, key: Key, param: str, purpose: str | None = "fine-tune") -> Path:
        """The content of an uploaded file that the key may read; a `purpose` of None is any."""
        file = await self.objects.files.get(id, owner_of(key))
        if purpose is not None and file.purpose != purpose:
            raise InvalidRequest(
                f"{param}: {id} has the purpose {file.purpose!r}: upload it with the purpose {purpose!r}.",
                param=param,
                code="invalid_purpose",
            )
        return self.objects.blobs.kept(id)

    async def input(
        self, id: str, key: Key, param: str, pairs: bool = False, purpose: str | None = "fine-tune"
    ) -> tuple[str, str]:
        """Path and content hash of an uploaded file as an input of a job; `pairs`: of preference training."""
        file = await self.file(id, key, param, purpose)
        path, digest = await asyncio.to_thread(*((pairs_of, file, param) if pairs else (input_of, file)))
        return str(path), digest

    def completed(self, grader: dict[str, Any]) -> dict[str, Any]:
        """The grader of a request with the gateway's embedding model."""
        found: dict[str, Any] = with_embedding_model(grader, self.config.jobs.embedding_model)
        return found

    async def submit(
        self,
        spec: JobSpec,
        key: Key,
        prefix: str = "job",
        result: str | None = None,
        launcher: str | None = None,
    ) -> JobRow:
        """The job, after its settings were checked as the trainer checks them."""
        chosen = self._launcher(launcher or self.config.jobs.launcher)
        if spec.kind in PLAIN and spec.ranks > 1:
            raise InvalidRequest(f"A job of the kind {spec.kind} has one rank.", param="resources.ranks")
        if self.config.jobs.gpu_type is not None and spec.kind not in PLAIN:
            spec = await asyncio.to_thread(with_plan, spec, self.config.jobs.gpu_type)
        chosen.check(spec)
        if spec.kind != "script":
            await asyncio.to_thread(check, spec)
            state = await asyncio.to_thread(model_state, spec.model)
            spec = replace(spec, inputs={**spec.inputs, "model": state})
        gone = partial(_gone, chosen.name)
        row, _ = await self.book.submit(
            spec, key.id, launcher=chosen.name, prefix=prefix, result=result, gone=gone
        )
        return row

    async def restart(self, row: JobRow, key: Key) -> JobRow:
        """The job submitted again to its launcher, with its model's name. It continues from the last checkpoint."""
        names = [name for name, each in self.named.items() if each.name == row.launcher]
        launcher = names[0] if names else row.launcher.partition("@")[0]
        return await self.submit(row.spec, key, row.id.partition("-")[0], row.result, launcher)

    async def nodes(self) -> list[Node]:
        """Machines of the default launcher."""
        return await asyncio.to_thread(self.named[self.config.jobs.launcher].nodes)

    async def fine_tuning_gpus(self) -> int:
        """GPUs of a fine-tuning job whose request names none. A scheduler that does not answer counts as one with
        GPUs."""
        if (told := self.config.jobs.fine_tuning_gpus) is not None:
            return told
        try:
            return int(any(node.gpus for node in await self.nodes()))
        except RondoError:
            return 1

    def digest_of(self, spec: JobSpec, key: Key) -> str:
        """Equal for equal specifications of one owner."""
        return sha256_json([spec.digest, key.id])

    async def forget_inputs(self, spec: JobSpec) -> None:
        """Removes inputs that no job uses."""
        named = [str(value) for name, value in spec.settings.items() if name in spec.inputs]
        for path in [*named, *spec.settings.get("files", {}).values()]:
            if not await self.book.uses(path):
                await asyncio.to_thread(remove_input, path)

    async def _sweep(self) -> None:
        """Removes inputs that failed submissions left."""
        while True:
            try:
                if await self.book.store.claim("inputs of jobs", 2 * SWEEP_SECONDS):
                    for path in await asyncio.to_thread(old_inputs, KEPT_SECONDS):
                        if not await self.book.uses(str(path)):
                            await asyncio.to_thread(remove_input, str(path))
            except (RondoError, sa.exc.SQLAlchemyError, OSError) as error:
                log.warning("inputs of jobs are not swept", extra={"error": str(error)[:300]})
            await asyncio.sleep(SWEEP_SECONDS)

    def _launcher(self, name: str) -> Launcher:
        if name not in self.named:
            raise InvalidRequest(
                f"launcher is one of {', '.join(self.named)}: gateway.jobs.launchers adds others.",
                param="launcher",
            )
        return self.named[name]

    async def close(self) -> None:
        """Jobs of this machine go on; the next gateway adopts them."""
        await self.publisher.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _gone(launcher: str, row: JobRow) -> bool:
    """Whether the folder of a job that succeeded on this machine was removed."""
    here = row.launcher == launcher and launcher.startswith("local@") and row.kind not in PLAIN
    return here and row.state == "succeeded" and not (jobs_dir() / str(row.hash)).is_dir()


def own_url(config: GatewayConfig) -> str | None:
    """URL of the gateway for processes of this machine; None while its port is not known."""
    if not config.port:
        return None
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::", "localhost") else config.host
    return f"{'http' if config.tls_certificate is None else 'https'}://{host}:{config.port}"
