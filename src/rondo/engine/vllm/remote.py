"""vLLM as a child process with an HTTP interface, token ids in and out, restarted when it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any

import httpx
import numpy as np
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from rondo.base.errors import RondoError, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.client.answers import SseParser
from rondo.client.engine import PauseMode
from rondo.engine.vllm.backend import OutputDelta, VllmAdapter, VllmRequest
from rondo.engine.vllm.child.process import URL, VllmProcess
from rondo.engine.vllm.child.restarts import Restarts
from rondo.engine.vllm.wire import generation, pieces, prompt_logprobs, refusal
from rondo.engine.weights.sleep import TAGS

log = get_logger("rondo.engine.vllm")

GENERATE = "/inference/v1/generate"
FIGURES_SECONDS = 2
"""Timeout for reading vLLM's metrics; on a timeout only ours are shown."""
NO_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)


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
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._control = process.client()
        self._start()
        self._watcher = threading.Thread(target=self._watch, name="rondo-vllm", daemon=True)
        self._watcher.start()

    async def stream(self, asked: VllmRequest) -> AsyncGenerator[OutputDelta, None]:
        self._check_up()
        try:
            if asked.request.pooling is not None:
                yield await self._vector(asked)
                return
            if asked.request.sampling.prompt_logprobs is not None:
                yield await self._prompt(asked)
            body = generation(asked, asked.sampling())
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            events = SseParser()
            async with self._http().stream("POST", GENERATE, json=body) as answer:
                if not answer.is_success:
                    raise refusal(answer.status_code, await answer.aread())
                async for data in answer.aiter_bytes():
                    for event in events.push(data):
                        for piece in pieces(event, asked):
                            yield piece
        except httpx.HTTPError as error:
            raise self._lost() from error

    async def pause(self, mode: PauseMode) -> None:
        await self._verb("/pause", params={"mode": mode, "clear_cache": "false"})
        self._paused = True

    async def resume(self) -> None:
        self._paused = False
        await self._verb("/resume")

    async def sleep(self, level: int, mode: PauseMode) -> None:
        await self._verb("/sleep", params={"level": level, "mode": mode})
        self._sleep = level, frozenset(TAGS)

    async def wake(self, tags: Sequence[str] | None) -> None:
        woken = list(tags or TAGS)
        await self._verb("/wake_up", params={"tags": woken})
        if self._sleep is not None:
            level, asleep = self._sleep
            left = asleep.difference(woken)
            # If only the cache is asleep, level 2 would drop weights again that were restored since.
            self._sleep = (level if "weights" in left else 1, left) if left else None

    async def reset_prefix_cache(self) -> None:
        await self._verb("/reset_prefix_cache")

    async def load_adapter(self, adapter: VllmAdapter) -> None:
        self._check_up()
        await asyncio.to_thread(self._load_adapter, adapter)
        self._adapters[adapter.inner_name] = adapter

    async def unload_adapter(self, adapter: VllmAdapter) -> None:
        self._adapters.pop(adapter.inner_name, None)
        await self._verb("/v1/unload_lora_adapter", {"lora_name": adapter.inner_name})

    async def transfer(self, path: str, version: int) -> None:
        """If vLLM ends meanwhile, it is restarted with the old weights."""
        self._check_up()
        await asyncio.to_thread(self._transfer, path, version)
        self._weights = path, version

    def figures(self) -> Iterable[Metric]:
        if not self.up:
            return ()
        try:
            answer = self._control.get("/metrics", timeout=FIGURES_SECONDS)
        except httpx.HTTPError:
            return ()
        return text_string_to_metric_families(answer.text) if answer.is_success else ()

    def stop(self) -> None:
        self._stopped.set()
        self.process.stop()
        self._watcher.join(timeout=30)
        self._control.close()

    async def _vector(self, asked: VllmRequest) -> OutputDelta:
        body = asked.common() | {
            "input": list(asked.request.prompt_ids),
            "task": "embed",
            "use_activation": False,
            "encoding_format": "bytes_only",
        }
        answer = await self._http().post("/pooling", json=body)
        if not answer.is_success:
            raise refusal(answer.status_code, answer.content)
        return OutputDelta(0, (), vector=np.frombuffer(answer.content, dtype="<f4"), finish_reason="stop")

    async def _prompt(self, asked: VllmRequest) -> OutputDelta:
        """Requests a prompt's log-probabilities. vLLM returns them only without streaming, so that a request for one
        token is sent first; its computed blocks stay cached."""
        params = {"max_tokens": 1, "temperature": 0, "detokenize": False}
        wanted = {"prompt_logprobs": asked.request.sampling.prompt_logprobs}
        answer = await self._http().post(GENERATE, json=generation(asked, params | wanted))
        if not answer.is_success:
            raise refusal(answer.status_code, answer.content)
        return OutputDelta(0, (), prompt_logprobs=prompt_logprobs(answer.json()["prompt_logprobs"], asked))

    def _transfer(self, path: str, version: int) -> None:
        self._ask("/start_weight_update")
        self._ask("/update_weights", {"update_info": {"path": path, "version": version}})
        self._ask("/finish_weight_update", {"weight_version": str(version)})

    def _load_adapter(self, adapter: VllmAdapter) -> None:
        self._ask("/v1/load_lora_adapter", {"lora_name": adapter.inner_name, "lora_path": adapter.path})

    def _start(self) -> None:
        """Starts vLLM with its previous state: weights, adapters, paused and sleeping parts."""
        folder, version = self._weights
        self.process.start(
            ["--model", folder, "--served-model-name", "base", *self._arguments], self._stopped
        )
        self._ask("/update_weight_version", {"new_version": str(version)})
        for adapter in list(self._adapters.values()):
            self._load_adapter(adapter)
        if self._paused:
            self._ask("/pause", params={"mode": "keep", "clear_cache": "false"})
        if self._sleep is not None:
            level, asleep = self._sleep
            self._ask("/sleep", params={"level": level, "mode": "keep"})
            if awake := sorted(set(TAGS) - asleep):
                self._ask("/wake_up", params={"tags": awake})
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

    def _lost(self) -> Unavailable:
        return Unavailable(
            "vLLM ended in the middle of this request; it is being started again. Ask again in a while.",
            code="engine_restarting",
        )

    def _http(self) -> httpx.AsyncClient:
        """HTTP client of the running event loop, since connections belong to one loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            transport = httpx.AsyncHTTPTransport(uds=self.process.socket, limits=NO_LIMITS)
            self._client = httpx.AsyncClient(base_url=URL, transport=transport, timeout=None)
            self._loop = loop
        return self._client

    async def _verb(
        self, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, Any] | None = None
    ) -> None:
        self._check_up()
        await asyncio.to_thread(self._ask, path, body, params)

    def _ask(
        self, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, Any] | None = None
    ) -> None:
        try:
            answer = self._control.post(path, json=body, params=params)
        except httpx.HTTPError as error:
            raise self._lost() from error
        if not answer.is_success:
            raise refusal(answer.status_code, answer.content)
