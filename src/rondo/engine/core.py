"""Synchronous engine core without threads or text: accepts requests, runs one step at a time, returns tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from rondo.base.errors import ConfigError, Conflict, RondoError
from rondo.client.engine import RunningRequests
from rondo.client.types import FinishReason, GenerateRequest
from rondo.engine.config import EngineConfig
from rondo.engine.kv.blocks import BlockPool
from rondo.engine.kv.cache import KVCache, block_bytes, choose_num_blocks, kv_dtype
from rondo.engine.kv.groups import GroupedPool
from rondo.engine.kv.host import host_caches, swap_of
from rondo.engine.kv.window import group_layers
from rondo.engine.metrics.startup_log import announce
from rondo.engine.runner.autotune import autotune
from rondo.engine.runner.deterministic import hold_bits
from rondo.engine.runner.native import check_native
from rondo.engine.runner.pooling import is_usable
from rondo.engine.runner.runner import Runner, StepResult
from rondo.engine.runner.sampler import Sampled, Sampler
from rondo.engine.schedule.intake import InputProcessor, max_model_len, not_finite, nothing_left
from rondo.engine.schedule.plan import StepPlan
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.scheduler import Scheduler
from rondo.engine.schedule.step import NOTHING, StepOutput
from rondo.engine.speculate.make import load_draft, make_speculation
from rondo.engine.speculate.speculation import accepted_rows
from rondo.engine.structured.grammars import Grammars
from rondo.engine.weights.adapter_reader import AdapterReader
from rondo.engine.weights.adapters import Adapters, LoadedAdapter, unloaded
from rondo.engine.weights.sleep import Reload, Sleeper, check_level, put
from rondo.engine.weights.weight_reload import StagedWeights, check_version, read_version
from rondo.engine.weights.weight_update import WeightUpdate
from rondo.models import Decoder, load
from rondo.models.adapters.mixed import Mixer
from rondo.models.heads.scorer import check_writes
from rondo.ops import NO_TOKEN
from rondo.ops.native.build.ahead import compile_all


class EngineCore:
    stages_aside = True
    """Whether another thread may read new weights while steps continue."""

    def __init__(
        self,
        model: Decoder,
        config: EngineConfig | None = None,
        eos_ids: tuple[int, ...] | None = None,
        weight_version: int = 0,
        clock: Callable[[], float] = time.monotonic,
        reload: Reload | None = None,
    ) -> None:
        self.config = config = config or EngineConfig()
        check_native(config)
        check_writes(model.config)
        self.model = model
        if model.device.type == "cpu":
            compile_all()
        self._let_bits_go = hold_bits(model, config, self)
        given = model.config.eos_ids if eos_ids is None else eos_ids
        # A tokenizer may have more tokens than the model.
        self.eos_ids = tuple(token for token in given if 0 <= token < model.config.vocab_size)
        self.max_model_len = max_model_len(config, model.config.max_positions)
        draft = load_draft(config, model)
        cache, self.pool = self._kv_cache(draft)
        hosts = host_caches(config, cache, self._agree)
        self.scheduler = Scheduler(
            self.pool,
            config.max_num_seqs,
            config.max_step_tokens,
            config.max_queued,
            config.batching,
            swap_of(config, self.pool, hosts, model, self._agree),
            weight_version,
        )
        vocab = model.config.vocab_size
        sampler = Sampler(config.max_num_seqs, self.eos_ids, vocab)
        self.grammars = Grammars(vocab, self.eos_ids, config.max_queued)
        self.adapters = Adapters(self._adapter_reader(), config)
        self.runner = Runner(
            model,
            cache,
            sampler,
            config.max_num_seqs,
            self.max_model_len,
            Mixer(self.adapters.reader.sites),
            hosts,
            config.cuda_graphs,
        )
        self.sleeper = Sleeper(model, cache, reload)
        self._owns_weights = reload is not None
        self.speculation = make_speculation(config, self.scheduler, self.runner, draft)
        self.update = WeightUpdate()
        self._clock = clock
        self._intake = InputProcessor(config, self.max_model_len, vocab, self.eos_ids)
        self._requests: dict[str, list[Request]] = {}
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        one_call = self.runner.compiled is not None
        announce(model, one_call, self.runner.graphs is not None)
        autotune(model, config, one_call)

    @property
    def weight_version(self) -> int:
        return self.scheduler.weight_version

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def whole(self) -> bool:
        """Whether weights and KV cache are complete and in memory, so that a step can run."""
        return not self.update.torn and not self.sleeper.asleep

    @property
    def samples(self) -> list[Request]:
        """Unfinished samples; may be read from any thread."""
        return [sample for samples in list(self._requests.values()) for sample in samples]

    def add(self, request: GenerateRequest, adapter: LoadedAdapter | None = None) -> list[Request]:
        """Queues the request's `n` samples and returns them; they are updated in place.

        `adapter` is the request's adapter if the caller holds it already; otherwise it is loaded here.
        """
        params = request.sampling
        prompt = list(request.prompt_ids)
        if request.id in self._requests:
            raise Conflict(f"a request with the id {request.id!r} is running already.", param="id")
        self._intake.check(request, prompt)
        self.scheduler.check_room(params.n)
        form = params.structured_outputs
        matchers = [] if form is None else [self.grammars.matcher(form) for _ in range(params.n)]
        adapter = self._hold(request.adapter, adapter)
        samples = self._intake.samples(request, prompt, adapter, self._clock())
        for sample, matcher in zip(samples, matchers):
            sample.matcher = matcher
        for sample in samples:
            self.scheduler.add(sample)
        self._requests[request.id] = samples
        return samples

    def load_adapter(self, name: str, folder: str | Path, replace: bool = False) -> None:
        """Serves the adapter in `folder` under `name`. With `replace`, the name may be in use: requests in progress
        finish with the old version."""
        self.adapters.add(name, folder, replace)

    def unload_adapter(self, name: str) -> list[Request]:
        """Requests that have started with the adapter finish; waiting requests end with an error and are returned."""
        adapter = self.adapters.remove(name)
        ended: list[Request] = []
        for samples in list(self._requests.values()):
            if samples[0].adapter is adapter is not None and all(each.first_cached < 0 for each in samples):
                for sample in samples:
                    sample.error = unloaded(name)
                ended += self.abort(samples[0].id)
        return ended

    def has_request(self, request_id: str) -> bool:
        """Whether a sample of the request is waiting or running."""
        return request_id in self._requests

    def abort(
        self, request_id: str, index: int | None = None, reason: FinishReason = "abort"
    ) -> list[Request]:
        """Ends a request, or one of its samples, in any state. Returns the ended samples."""
        samples = self._requests.get(request_id, ())
        ended = [r for r in samples if r.finish_reason is None and index in (None, r.index)]
        for request in ended:
            self.scheduler.finish(request)
            self._end(request, reason)
        return ended

    def abort_all(self) -> None:
        for request_id in list(self._requests):
            self.abort(request_id)

    def _check_awake(self) -> None:
        if self.sleeper.asleep:
            raise Conflict("the engine is asleep: wake it before the next step.")
        if self.update.torn:
            raise Conflict("weights are being updated: finish the update before the next step.")

    def step(self) -> StepOutput:
        self._check_awake()
        if self.speculation is None:
            return self._run(self.scheduler.schedule())
        started = self._clock()
        plan = self.speculation.plan()
        step = self._run(plan)
        self.speculation.observe(plan, step.extra, self._clock() - started)
        return step

    def hold(self) -> None:
        """Running requests continue; new requests wait until `release`."""
        self.scheduler.hold()

    def release(self) -> None:
        self.scheduler.release()

    def start_weight_update(self) -> None:
        """Lets the caller write to the model's tensors. Requests stay where they are."""
        self._check_update(None)
        self.update.begin()

    def finish_weight_update(self, version: int) -> None:
        """Resumes requests with the new weights over their existing keys and values. Each token is labelled with the
        version that produced it."""
        self.update.finish(version, self.weight_version)
        self.sleeper.reload = None  # the checkpoint's weights are older than these
        self.scheduler.set_weight_version(version)

    def abort_weight_update(self) -> None:
        """Aborts an update whose writer failed: another update may start, and no step runs until an
        update is finished."""
        self.update.abort()

    def check_weights(self, folder: Path, version: int | None) -> None:
        """Raises the errors of `update_weights` that can be detected without reading the weights."""
        self._check_update(version)
        self._check_owns_weights()
        check_version(folder, self.model.config)

    def update_weights(
        self, folder: Path, version: int, requests: RunningRequests = "retain"
    ) -> list[Request]:
        """Updates all weights from a model folder. The new weights are read next to the ones in use and replace them
        once complete; on an error the engine continues with the old weights. Returns the requests that ended."""
        return self.switch_weights(self.stage_weights(folder, version), version, requests)

    def stage_weights(self, folder: Path, version: int) -> StagedWeights:
        """Reads a version next to the weights in use. If `stages_aside`, another thread may call it between steps."""
        self._check_update(version)
        self._check_owns_weights()
        reload = self._reload_from(folder)
        return StagedWeights(self._all_have(partial(read_version, self.model, reload, folder)), reload)

    def switch_weights(
        self, staged: StagedWeights, version: int, requests: RunningRequests = "retain"
    ) -> list[Request]:
        """Replaces the weights between two steps. Returns the requests that ended."""
        self._check_update(version)
        put(self.model, staged.tensors)
        self.update.restore()
        self.sleeper.reload = staged.reload
        self.scheduler.set_weight_version(version)
        if requests == "recompute":
            self.scheduler.preempt_all()
        if requests == "abort":
            return [sample for request in list(self._requests) for sample in self.abort(request)]
        return []

    def sleep(self, level: int = 1) -> None:
        """Frees the KV cache and moves the weights to host memory (level 1) or drops them (level 2). Running requests
        are preempted; they keep their tokens and are recomputed after `wake`."""
        check_level(level)
        self.update.check_sleep()
        self.scheduler.preempt_all()
        self.adapters.drop_idle()
        if self.runner.mixer is not None:
            self.runner.mixer.forget()
        self.runner.forget_graphs()
        self.sleeper.sleep(level)
        if self.speculation is not None:
            self.speculation.proposer.sleep(level)
        if level == 2:
            self.update.lose()

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """Restores the tagged memory; dropped weights are read from their checkpoint. If the weights were updated since
        that checkpoint, no step runs until an update has written a complete version."""
        if self.speculation is not None:
            self.speculation.proposer.wake(tags)
        if self.sleeper.wake(tags):
            self.update.restore()

    def reset_prefix_cache(self) -> None:
        self.pool.forget()

    def watch(self, fail: Callable[[RondoError], None]) -> None:
        """`fail` is called, from any thread, when the engine cannot continue for a reason outside its steps."""

    def close(self) -> None:
        """Releases resources outside this process and undoes process-wide settings."""
        self.grammars.close()
        self._let_bits_go()

    def _check_update(self, version: int | None) -> None:
        self.update.check("weights" in self.sleeper.asleep, version, self.weight_version)

    def _check_owns_weights(self) -> None:
        if not self._owns_weights:
            raise ConfigError(
                "the model belongs to the caller of this engine, which may share its tensors: write to them between "
                "start_weight_update and finish_weight_update.",
                param="path",
            )

    def _reload_from(self, folder: Path) -> Reload:
        return partial(load, folder, self.model.dtype, self.model.device)

    def _kv_cache(self, draft: Decoder | None) -> tuple[KVCache, GroupedPool]:
        config, device, size = self.config, self.model.device, self.config.block_size
        specs, kept = self.model.attention_specs(), kv_dtype(config, self.model.dtype)
        grouping = group_layers(specs, size, keeps_all=draft is not None)
        sizes = [block_bytes(own, size, kept) for own in grouping.split(specs)]
        if draft is not None:
            # The draft model's keys and values lie in the first group's blocks, and it may attend to all of
            # them.
            sizes[0] += block_bytes(draft.attention_specs(), size, kv_dtype(config, draft.dtype))
        chosen = choose_num_blocks(config, sizes, grouping.windows, self.max_model_len, device)
        counts = [self._agree(count) for count in chosen]
        groups = [
            BlockPool(count, size, config.prefix_cache, window)
            for count, window in zip(counts, grouping.windows, strict=True)
        ]
        return KVCache(specs, counts, size, kept, device, grouping.of), GroupedPool(groups)

    def _all_have(self, read: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The result of `read`, if every process that holds a part of the model could read its part."""
        return read()

    def _agree(self, number: int) -> int:
        """Agrees with the other processes on a number that plans depend on, such as the number of KV blocks."""
        return number

    def _adapter_reader(self) -> AdapterReader:
        return AdapterReader(self.model, self.config.max_adapter_rank, self.config.deterministic)

    def _compute(self, plan: StepPlan) -> StepResult:
        return self.runner.run(plan)

    def _hold(self, name: str | None, held: LoadedAdapter | None) -> LoadedAdapter | None:
        if held is None:
            return None if name is None else self.adapters.hold(name)
        if held.unloaded:
            raise unloaded(held.name)
        self.adapters.share(held)
        return held

    def _run(self, plan: StepPlan) -> StepOutput:
        if plan.empty:
            return NOTHING
        self._begin(plan)
        result = self._compute(plan)
        self.scheduler.commit(plan)
        return self._advance(plan, result)

    def _begin(self, plan: StepPlan) -> None:
        """Records the start time of the admitted requests before the step is computed."""
        if plan.admitted:
            at = self._clock()
            for request in plan.admitted:
                request.started_at = request.started_at or at

    def _advance(self, plan: StepPlan, result: StepResult) -> StepOutput:
        self._end_pooled(result.pooled)
        sampled = result.sampled
        if sampled is None:
            return StepOutput([], result.pooled, plan.admitted)
        rows = accepted_rows(result.requests, sampled.tokens) if plan.ahead else range(len(result.requests))
        finished, broken = self._take_tokens(result.requests, sampled, rows)
        moved, extra = result.requests, 0
        if self.speculation is not None and plan.ahead:
            moved = list(dict.fromkeys(result.requests[i] for i in rows if sampled.tokens[i] != NO_TOKEN))
            extra = self.speculation.commit_drafts(plan, result, broken)
        if finished:
            self.scheduler.finish_all(finished)
            for request in finished:
                self._finish(request)
        if broken:
            self._break(broken)
        for request in moved:
            if request.followers:
                self.scheduler.fork(request)
        ended = finished + result.pooled
        if not broken:
            return StepOutput(moved, ended, plan.admitted, extra)
        advanced = [request for request in moved if request.error is None]
        return StepOutput(advanced, ended + broken, plan.admitted, extra)

    def _end_pooled(self, requests: Sequence[Request]) -> None:
        whole = [request for request in requests if is_usable(request)]
        if len(whole) < len(requests):
            self._break([request for request in requests if request not in whole])
        if whole:
            self.scheduler.finish_all(whole)
            for request in whole:
                self._end(request, "stop")

    def _take_tokens(
        self, requests: Sequence[Request], sampled: Sampled, rows: Iterable[int]
    ) -> tuple[list[Request], list[Request]]:
        """Returns the finished samples, and the samples without a usable token."""
        finished: list[Request] = []
        broken: list[Request] = []
        version = self.weight_version
        for i in rows:
            request = requests[i]
            token = sampled.tokens[i]
            if token == NO_TOKEN:
                if i in sampled.excluded and not request.proposed:
                    request.error = nothing_left(request)
                broken.append(request)
                continue
            request.tokens.append(token)
            if sampled.logprobs is not None and request.sampling.logprobs is not None:
                request.logprobs.append(sampled.logprobs[i])
                if request.sampling.logprobs:
                    request.top_logprobs.append(sampled.top[i])
            # Last, and before the finish reason: a reader in another thread counts tokens by this list.
            request.weight_versions.append(version)
            if token in request.stop_ids or len(request.tokens) >= request.max_length:
                finished.append(request)
        return finished, broken

    def _break(self, requests: list[Request]) -> None:
        """Ends requests that have no next token. If the model's logits were not usable, the computed keys and values
        are not reused."""
        refused = [request for request in requests if request.error is not None]
        for request in refused:
            self.scheduler.finish(request)
            self._end(request, "abort")
        requests = [request for request in requests if request not in refused]
        if not requests:
            return
        for request in requests:
            self.runner.cache.clean(request.tables)
            self.scheduler.finish(request)
            request.error = not_finite()
            self._end(request, "abort")
        self.pool.forget()

    def _finish(self, request: Request) -> None:
        token = request.tokens[-1]
        stopped = token in request.stop_ids
        if stopped and token in request.sampling.stop_token_ids:
            request.stop_reason = token
        self._end(request, "stop" if stopped else "length")

    def _end(self, request: Request, reason: FinishReason) -> None:
        request.finish_reason = reason
        samples = self._requests[request.id]
        if all(sample.finish_reason is not None for sample in samples):
            del self._requests[request.id]
            if request.adapter is not None:
                self.adapters.release(request.adapter)
                for sample in samples:
                    # The reader of the answer may hold the request, but does not need the weights.
                    sample.adapter = None
            for sample in samples:
                sample.matcher = None
