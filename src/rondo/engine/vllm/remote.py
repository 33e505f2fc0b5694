"""vLLM as a child process with an HTTP interface, token ids in and out, restarted when it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import ParamSpec

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from rondo.base.errors import RondoError, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.client.engine import PauseMode
from rondo.engine.vllm.backend import OutputDelta, VllmAdapter, VllmRequest
from rondo.engine.vllm.child.process import VllmProcess
from rondo.engine.vllm.child.restarts import Restarts
from rondo.engine.vllm.client import AsyncVllmClient, VllmClient, generate
from rondo.engine.weights.sleep import TAGS

log = get_logger("rondo.engine.vllm")

FIGURES_SECONDS = 2
"""Timeout for reading vLLM's metrics; on a timeout only ours are shown."""
Given = ParamSpec("Given")


class Remote:
    def __init__(
        self,
        process: VllmProcess,
        arguments: Sequence[str],
        model: str,
        version: int,
        adapters: Sequence[VllmAdapter],
        restarts: int,
        on_failure: Callable[[RondoError], None],
    ) -> None:
        """Blocks until vLLM has started with the weights in `model`."""
        self.process = process
        self.up = False
        self._arguments = list(arguments)
        self._weights = model, version
        self._adapters = {adapter.inner_name: adapter for adapter in adapters}
        self._paused = False
        self._sleep: tuple[int, frozenset[str]] | None = None
        """Sleep level, and the parts still asleep."""
        self._restarts = Restarts(restarts)
        self._on_failure = on_failure
        self._stopped = threading.Event()
        self._why = "is starting"
        self._client: AsyncVllmClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._control = VllmClient(process.socket)
        self._start()
        self._watcher = threading.Thread(target=self._watch, name="rondo-vllm", daemon=True)
        self._watcher.start()

    async def stream(self, query: VllmRequest) -> AsyncGenerator[OutputDelta, None]:
        self._check_up()
        client = self._streams()
        if query.request.pooling is not None:
            yield await client.vector(query)
            return
        if query.request.sampling.prompt_logprobs is not None:
            yield await client.prompt_logprobs(query)
        async with aclosing(generate(client, query)) as pieces:
            async for piece in pieces:
                yield piece

    async def pause(self, mode: PauseMode) -> None:
        await self._do(self._control.pause, mode)
        self._paused = True

    async def resume(self) -> None:
        self._paused = False
        await self._do(self._control.resume)

    async def sleep(self, level: int, mode: PauseMode) -> None:
        await self._do(self._control.sleep, level, mode)
        self._sleep = level, frozenset(TAGS)

    async def wake(self, tags: Sequence[str] | None) -> None:
        woken = list(tags or TAGS)
        await self._do(self._control.wake_up, woken)
        if self._sleep is not None:
            level, asleep = self._sleep
            left = asleep.difference(woken)
            # If only the cache is asleep, level 2 would drop weights again that were restored since.
            self._sleep = (level if "weights" in left else 1, left) if left else None

    async def reset_prefix_cache(self) -> None:
        await self._do(self._control.reset_prefix_cache)

    async def load_adapter(self, adapter: VllmAdapter) -> None:
        await self._do(self._control.load_lora_adapter, adapter.inner_name, adapter.path)
        self._adapters[adapter.inner_name] = adapter

    async def unload_adapter(self, adapter: VllmAdapter) -> None:
        self._adapters.pop(adapter.inner_name, None)
        await self._do(self._control.unload_lora_adapter, adapter.inner_name)

    async def transfer(self, path: str, version: int) -> None:
        """If vLLM ends meanwhile, it is restarted with the old weights."""
        await self._do(self._control.send_weights, path, version)
        self._weights = path, version

    def figures(self) -> Iterable[Metric]:
        if not self.up:
            return ()
        return text_string_to_metric_families(self._control.metrics(FIGURES_SECONDS))

    def stop(self) -> None:
        self._stopped.set()
        self.process.stop()
        self._watcher.join(timeout=30)
        self._control.close()

    def _start(self) -> None:
        """Starts vLLM with its previous state: weights, adapters, paused and sleeping parts."""
        folder, version = self._weights
        self.process.start(
            ["--model", folder, "--served-model-name", "base", *self._arguments], self._stopped
        )
        self._control.update_weight_version(version)
        for adapter in list(self._adapters.values()):
            self._control.load_lora_adapter(adapter.inner_name, adapter.path)
        if self._paused:
            self._control.pause("keep")
        if self._sleep is not None:
            level, asleep = self._sleep
            self._control.sleep(level, "keep")
            if awake := sorted(set(TAGS) - asleep):
                self._control.wake_up(awake)
        self.up = True

    def _watch(self) -> None:
        """Watches and restarts vLLM in its own thread; requests raise an error meanwhile."""
        going = True
        while going:
            how = self.process.wait()
            self.up = False
            going = not self._stopped.is_set() and self._start_again(how)

    def _start_again(self, how: str) -> bool:
        """Restarts vLLM until it has started, or until the maximum number of restarts is reached."""
        while True:
            self._why = f"{how}, and is being started again"
            log.error("vLLM ended", extra={"how": how})
            seconds = self._restarts.next(time.monotonic())
            if seconds is None:
                last = f"vLLM {how}, for the last time (engine.vllm.restarts)."
                self._on_failure(Unavailable(last, code="engine_failed"))
                return False
            if self._stopped.wait(seconds):
                return False
            try:
                self._start()
                return True
            except RondoError as error:
                how = f"could not be started again: {error.message.removeprefix('vLLM ').rstrip('.')}"
            except Exception:
                log.exception("vLLM could not be started again")
                how = "could not be started again, as the log says"
            if self._stopped.is_set():
                return False

    def _check_up(self) -> None:
        if not self.up:
            raise Unavailable(f"vLLM {self._why}. Ask again in a while.", code="engine_restarting")

    def _streams(self) -> AsyncVllmClient:
        """HTTP client of the running event loop, since connections belong to one loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = AsyncVllmClient(self.process.socket), loop
        return self._client

    async def _do(self, verb: Callable[Given, object], *given: Given.args, **named: Given.kwargs) -> None:
        self._check_up()
        await asyncio.to_thread(verb, *given, **named)
