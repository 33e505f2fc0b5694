"""The engine in its own thread, for servers: requests arrive on an event loop, steps run next to it.

There is no queue of tokens between the two. A request holds its tokens; the thread only signals that there are more,
and each reader takes the tokens since its last read. A slow reader receives larger chunks, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from rondo.base.errors import InvalidRequest, Overloaded, RondoError, Unavailable
from rondo.base.telemetry.account import current
from rondo.base.telemetry.log import get_logger
from rondo.client.engine import PauseMode, RunningRequests, WeightState
from rondo.client.protocol.prefix import PromptPieces
from rondo.client.types import GenerateRequest, TokenChunk
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.inbox import Inbox
from rondo.engine.entrypoints.lifecycle import Hold, Lifecycle
from rondo.engine.entrypoints.output import SampleReader, TextSource
from rondo.engine.entrypoints.streams import RequestStream, Streams, resolve_all
from rondo.engine.entrypoints.token_limits import with_bad_words
from rondo.engine.kv.events import CacheEvents, request_pieces
from rondo.engine.metrics.counters import EngineMetrics, record_request
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.step import StepOutput
from rondo.engine.weights.adapter_loader import AdapterLoader
from rondo.engine.weights.adapters import LoadedAdapter
from rondo.engine.weights.sleep import check_level

log = get_logger("rondo.engine")


class AsyncEngine:
    def __init__(self, core: EngineCore, tokenizer: TextSource | None = None, model_name: str = "") -> None:
        self.core = core
        self.max_model_len = core.max_model_len
        self.max_queued = core.config.max_queued
        self.max_running: int | None = core.config.max_num_seqs
        self.tokenizer = tokenizer
        self.metrics = EngineMetrics(core, model_name, lambda: self._lifecycle.serving)
        core.grammars.set_tokenizer(tokenizer)
        self.cache_events: CacheEvents | None = (
            core.pool.record_events() if core.config.prefix_cache else None
        )
        self._prompts: dict[str, PromptPieces] = {}
        """Prefixes of prompts that have not been computed yet."""
        self._loader = AdapterLoader(core.adapters, core.config.max_queued)
        self._streams = Streams()
        self._inbox = Inbox()
        self._lifecycle = Lifecycle(core, self._close_all)
        self._draining = False
        self._stopping = False
        self._broken: RondoError | None = None
        self._failure: RondoError | None = None
        self._idle_waiters: list[Future[None]] = []
        self._thread = threading.Thread(target=self._run, name="rondo-engine", daemon=True)
        self._thread.start()
        # A thread that is inside a step at interpreter exit would crash the process.
        atexit.register(self.stop)
        core.watch(self._break)

    @property
    def failure(self) -> RondoError | None:
        """The reason why the engine cannot serve any more; None while it can."""
        return self._failure

    @property
    def ready(self) -> bool:
        closed = self._failure or self._draining or self._stopping or not self._thread.is_alive()
        return not closed and self._lifecycle.serving

    @property
    def is_paused(self) -> bool:
        return self._lifecycle.paused

    @property
    def is_sleeping(self) -> bool:
        """Whether the weights or the KV cache are asleep."""
        return bool(self.core.sleeper.asleep)

    @property
    def weight_version(self) -> int:
        return self.core.weight_version

    def weight_state(self) -> WeightState:
        core = self.core
        return core.update.state("weights" in core.sleeper.asleep)

    def load(self) -> tuple[int, int]:
        """Number of running and of waiting samples."""
        return self.core.scheduler.num_running, self.core.scheduler.num_waiting

    def kv_load(self) -> dict[str, float]:
        pool = self.core.pool
        return {"kv_usage": pool.usage, "kv_free_tokens": pool.available * pool.block_size}

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Streams the request's samples. Leaving the iterator early aborts the request."""
        self._check_open(request)
        sampling = with_bad_words(request.sampling, self.tokenizer)
        if sampling is not request.sampling:
            request = replace(request, sampling=sampling)
        stream, account = RequestStream(asyncio.get_running_loop(), request.read_at_end), current()
        await self.core.grammars.ready(request.sampling.structured_outputs)
        try:
            async with self._loader.holding(request.adapter) as adapter:
                # Not awaited: the reader is woken by the first step with output, or by an error.
                pieces = request_pieces.get()
                self._inbox.post(lambda: self._open(request, stream, adapter, pieces))
                await stream.news()
            readers = [SampleReader(sample, self.tokenizer) for sample in stream.samples]
            while True:
                for reader in readers:
                    chunk = reader.read(stream.whole)
                    if chunk is not None:
                        if reader.request.error is not None:
                            raise reader.request.error
                        self._end_at_stop_string(reader, chunk)
                        yield chunk
                readers = [reader for reader in readers if not reader.done]
                if not readers:
                    break
                await stream.news()
        finally:
            # If the engine has ended all samples itself, there is nothing to close and no reason to wake its
            # thread.
            if not stream.samples or any(sample.finish_reason is None for sample in stream.samples):
                self._inbox.post(lambda: self._leave(request.id, stream))
            if account is not None:
                record_request(account, request, stream.samples, self.metrics.model_name)

    async def abort(self, request_id: str) -> None:
        await self._inbox.call(lambda: self._close(request_id))

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stops between two steps. keep: running requests stay; wait: they finish first; abort: they end.

        New requests wait in the queue. If the caller of a waiting pause is cancelled, nothing is paused.
        """
        life = self._lifecycle
        if mode == "wait":
            await self._when_done(lambda: life.pause(abort=False), undo=life.resume)
        else:
            await self._inbox.call(lambda: life.pause(abort=mode == "abort"))

    async def resume(self) -> None:
        await self._inbox.call(self._lifecycle.resume)

    async def sleep(self, level: int = 1, mode: PauseMode = "keep") -> None:
        """Frees the KV cache and moves the weights to CPU memory (1) or drops them (2).

        keep: running requests are recomputed after `wake`; wait: they finish first; abort: they end. New requests wait
        in the queue.
        """
        check_level(level)
        life = self._lifecycle
        with self.metrics.operation("sleep"):
            if mode == "wait":
                await self._when_done(lambda: life.sleep(level, abort=False), undo=lambda: None)
            else:
                await self._inbox.call(lambda: life.sleep(level, abort=mode == "abort"))

    async def wake(self, tags: Sequence[str] | None = None) -> None:
        """`tags` are "weights" and "kv_cache", both by default; requests continue once both are awake."""
        with self.metrics.operation("wake_up"):
            await self._inbox.call(lambda: self.core.wake(tags))

    def adapters(self) -> Sequence[str]:
        return self.core.adapters.names()

    def has_adapter(self, name: str) -> bool:
        return name in self.core.adapters

    async def load_adapter(self, name: str, path: str, replace: bool = False) -> None:
        """Serves the adapter in the folder `path` as `name`. Its files are read while steps continue."""
        await self._loader.run(lambda: self.core.load_adapter(name, path, replace))

    async def unload_adapter(self, name: str) -> None:
        """Requests that have started with the adapter finish; waiting requests end with an error."""
        await self._inbox.call(lambda: self._unload(name))

    async def check_weights(self, path: Path, version: int | None) -> None:
        """Raises the errors of `update_weights` that can be detected without reading the weights."""
        await asyncio.to_thread(self.core.check_weights, path, version)

    async def update_weights(self, path: Path, version: int, requests: RunningRequests = "retain") -> None:
        """Switches to the weights in the folder `path` between two steps. On an error the engine continues with the old
        weights."""
        core = self.core
        with self.metrics.operation("update_weights"):
            if core.stages_aside:
                staged = await asyncio.to_thread(core.stage_weights, path, version)
                await self._inbox.call(
                    lambda: self._publish_ended(core.switch_weights(staged, version, requests))
                )
            else:
                await self._inbox.call(
                    lambda: self._publish_ended(core.update_weights(path, version, requests))
                )

    async def start_weight_update(self) -> None:
        with self.metrics.operation("start_weight_update"):
            await self._inbox.call(self.core.start_weight_update)

    async def finish_weight_update(self, version: int) -> None:
        with self.metrics.operation("finish_weight_update"):
            await self._inbox.call(lambda: self.core.finish_weight_update(version))

    async def abort_weight_update(self) -> None:
        """Aborts an update whose writer failed: no step runs until another update is finished."""
        await self._inbox.call(self.core.abort_weight_update)

    async def reset_prefix_cache(self) -> None:
        await self._inbox.call(self.core.reset_prefix_cache)

    async def drain(self, seconds: float) -> None:
        """Stops accepting requests and lets the running ones finish; after `seconds` they are aborted."""
        self._draining = True
        waiter: Future[None] = Future()
        self._inbox.post(lambda: self._wait_until_idle(waiter))
        try:
            await asyncio.wait_for(asyncio.wrap_future(waiter), seconds)
        except TimeoutError:
            log.warning("requests were cut off while draining", extra={"seconds": seconds})
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """Ends the thread and aborts running requests."""
        atexit.unregister(self.stop)
        self._loader.close()
        self._stopping = True
        self._inbox.wake()
        self._thread.join(timeout=60)
        self.core.close()

    def _check_open(self, request: GenerateRequest) -> None:
        if self._failure is not None:
            raise self._failure
        if self._draining or self._stopping:
            raise Unavailable("the engine is shutting down.", code="shutting_down")
        if request.sampling.stop and self.tokenizer is None:
            raise InvalidRequest("stop strings need a tokenizer: use stop_token_ids.", param="stop")

    def _end_at_stop_string(self, reader: SampleReader, chunk: TokenChunk) -> None:
        request = reader.request
        if reader.done and request.finish_reason is None:
            request.stop_reason = chunk.stop_reason
            self._inbox.post(lambda: self._close(request.id, request.index, stopped=True))

    async def _when_done(self, then: Callable[[], None], undo: Callable[[], None]) -> None:
        """Calls `then` once all started requests have finished."""
        hold = Hold(Future(), then)
        try:
            await self._inbox.call(lambda: self._hold(hold))
            await asyncio.wrap_future(hold.waiter)
        except BaseException:
            self._inbox.post(lambda: self._lifecycle.withdraw(hold, undo))
            raise

    def _break(self, error: RondoError) -> None:
        """Stops the engine with `error`; may be called from any thread."""
        self._broken = error
        self._inbox.wake()

    # The methods below run in the engine's thread.

    def _run(self) -> None:
        error = Unavailable("the engine was stopped.", code="shutting_down")
        try:
            while not self._stopping:
                self._run_commands()
                if self._lifecycle.can_step:
                    self._step()
        except Unavailable as lost:
            log.exception("the engine failed")
            error = lost
        except Exception as cause:
            log.exception("the engine failed")
            error = Unavailable(
                "the engine failed; the cause is in its log. Restart it.", code="engine_failed"
            )
            error.__cause__ = cause
        self._fail(error)
        self._inbox.end()

    def _step(self) -> None:
        self._publish(self.core.step())

    def _publish(self, step: StepOutput) -> None:
        self.metrics.observe(step, time.monotonic())
        if self._prompts:
            self._note_prefixes(step)
        self._streams.wake(
            {request.id for request in step.advanced}, {request.id for request in step.finished}
        )
        for request in step.finished:
            self._forget(request)

    def _note_prefixes(self, step: StepOutput) -> None:
        for request in (*step.advanced, *step.finished):
            prompt = self._prompts.pop(request.id, None)
            if prompt is not None and self.cache_events is not None:
                blocks = request.prompt_length // self.core.pool.block_size
                self.cache_events.computed(prompt, request.prompt_length, request.keys[:blocks])

    def _run_commands(self) -> None:
        self._inbox.wait(self._is_due)
        if self._broken is not None:
            raise self._broken
        self._inbox.work_off()
        if self._lifecycle.hold_is_due:
            self._lifecycle.settle_holds()
        if self._waiters_are_due():
            resolve_all(self._idle_waiters, None)

    def _is_due(self) -> bool:
        """Whether the thread has work other than commands."""
        ends = self._broken is not None or self._stopping
        return ends or self._lifecycle.can_step or self._waiters_are_due()

    def _waiters_are_due(self) -> bool:
        return self._lifecycle.hold_is_due or (bool(self._idle_waiters) and not self.core.has_work)

    def _open(
        self,
        request: GenerateRequest,
        stream: RequestStream,
        adapter: LoadedAdapter | None,
        pieces: PromptPieces | None,
    ) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            stream.samples = self.core.add(request, adapter)
        except Exception as error:
            self.metrics.rejected += isinstance(error, Overloaded)
            stream.fail(error)
        else:
            self._streams[request.id] = stream
            if pieces is not None:
                self._prompts[request.id] = pieces

    def _leave(self, request_id: str, stream: RequestStream) -> None:
        """Ends the request's remaining samples after its reader has left."""
        if self._streams.get(request_id) is stream:
            self._close(request_id)

    def _close(self, request_id: str, index: int | None = None, stopped: bool = False) -> None:
        self._publish_ended(self.core.abort(request_id, index, "stop" if stopped else "abort"))

    def _unload(self, name: str) -> None:
        self._publish_ended(self.core.unload_adapter(name))

    def _publish_ended(self, requests: Sequence[Request]) -> None:
        now = time.monotonic()
        for request in requests:
            self.metrics.observe_end(request, now)
            self._streams.wake(set(), {request.id})
            self._forget(request)

    def _forget(self, request: Request) -> None:
        if not self.core.has_request(request.id):
            self._streams.pop(request.id, None)
            self._prompts.pop(request.id, None)

    def _close_all(self) -> None:
        for request_id in list(self._streams):
            self._close(request_id)

    def _hold(self, hold: Hold) -> None:
        if self._failure is not None:
            raise self._failure
        self._lifecycle.hold(hold)

    def _wait_until_idle(self, waiter: Future[None]) -> None:
        self._idle_waiters.append(waiter)
        if self._failure is not None:
            resolve_all(self._idle_waiters, None)

    def _fail(self, error: RondoError) -> None:
        """Notifies all readers and waiters first: after a bug, the rest of the state may be inconsistent."""
        self._failure = error
        self._loader.close()
        self._streams.fail(error)
        self._lifecycle.end_holds(error)
        resolve_all(self._idle_waiters, None)
        try:
            self.core.abort_all()
        except Exception:
            log.exception("requests could not be taken out of the failed engine")
