"""Direct mode: vLLM's `AsyncLLM` inside this process, with its model in a child process. Both need one environment."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from prometheus_client.core import Metric

from rondo.base.errors import ConfigError, InvalidRequest, ModelError, RondoError, Unavailable
from rondo.client.engine import PauseMode
from rondo.client.types import PromptLogprobs
from rondo.engine.vllm.backend import OutputDelta, VllmAdapter, VllmRequest, likeliest, scores_of, spread
from rondo.engine.vllm.folder import RunFolder
from rondo.engine.vllm.options import USUAL, plugins_too
from rondo.engine.vllm.versions import check_version


class InProcessVllm:
    def __init__(
        self, arguments: Sequence[str], variables: Mapping[str, str], on_failure: Callable[[RondoError], None]
    ) -> None:
        """Starts vLLM; blocks until the model is loaded."""
        if find_spec("vllm") is None:
            raise ConfigError(
                f"vllm.mode is direct, but vLLM is not installed for {sys.executable}. Install Rondo into vLLM's "
                "environment (pip install --no-deps rondo-lab), or choose http and name its Python with vllm.python.",
                param="vllm.mode",
            )
        self.up = True
        self._on_failure = on_failure
        self._folder = RunFolder()
        try:
            _prepare(self._folder, variables)
            self._llm = _start(arguments)
        except BaseException:
            self._folder.remove()
            raise

    async def stream(self, query: VllmRequest) -> AsyncGenerator[OutputDelta, None]:
        with self._translated_errors():
            outputs = self._vector(query) if query.request.pooling is not None else self._tokens(query)
            async with contextlib.aclosing(outputs) as pieces:
                async for piece in pieces:
                    yield piece

    async def pause(self, mode: PauseMode) -> None:
        with self._translated_errors():
            await self._llm.pause_generation(mode=mode, clear_cache=False)

    async def resume(self) -> None:
        with self._translated_errors():
            await self._llm.resume_generation()

    async def sleep(self, level: int, mode: PauseMode) -> None:
        with self._translated_errors():
            await self._llm.sleep(level, mode)

    async def wake(self, tags: Sequence[str] | None) -> None:
        with self._translated_errors():
            await self._llm.wake_up(None if tags is None else list(tags))

    async def reset_prefix_cache(self) -> None:
        with self._translated_errors():
            await self._llm.reset_prefix_cache()

    async def load_adapter(self, adapter: VllmAdapter) -> None:
        with self._translated_errors():
            await self._llm.add_lora(_lora(adapter))

    async def unload_adapter(self, adapter: VllmAdapter) -> None:
        """Does nothing: no new request can use the adapter, running ones continue, and vLLM evicts it
        when necessary."""

    async def transfer(self, path: str, version: int) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        with self._translated_errors():
            await self._llm.start_weight_update()
            update = {"path": path, "version": version}
            await self._llm.update_weights(WeightTransferUpdateRequest(update_info=update))
            await self._llm.finish_weight_update(str(version))

    def figures(self) -> Iterable[Metric]:
        from vllm.v1.metrics.prometheus import get_prometheus_registry

        metrics: Iterable[Metric] = get_prometheus_registry().collect()
        return metrics

    def stop(self) -> None:
        self._llm.shutdown()
        self._folder.remove()

    async def _tokens(self, query: VllmRequest) -> AsyncGenerator[OutputDelta, None]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        given = query.sampling()
        wanted = given["prompt_logprobs"] = query.request.sampling.prompt_logprobs
        if "structured_outputs" in given:
            given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
        chosen = SamplingParams(**given, output_kind=RequestOutputKind.DELTA)
        outputs = self._llm.generate(
            _prompt(query),
            chosen,
            query.request.id,
            lora_request=_lora(query.adapter),
            priority=query.request.priority,
        )
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                if wanted is not None and output.prompt_logprobs:
                    yield OutputDelta(0, (), prompt_logprobs=_scores(output.prompt_logprobs, query))
                for sample in output.outputs:
                    yield _piece(sample, output.num_cached_tokens, query.request.sampling.logprobs)

    async def _vector(self, query: VllmRequest) -> AsyncGenerator[OutputDelta, None]:
        from vllm import PoolingParams

        outputs = self._llm.encode(
            _prompt(query),
            PoolingParams(task="embed", use_activation=False),
            query.request.id,
            lora_request=_lora(query.adapter),
            priority=query.request.priority,
        )
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                vector = output.outputs.data.float().numpy()
                yield OutputDelta(0, (), vector=vector, finish_reason="stop", cached=output.num_cached_tokens)

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translates vLLM's exceptions to the native engine's."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except EngineDeadError as error:
            lost = Unavailable(
                "vLLM's engine has ended; the cause is in its log. Restart the server.", code="engine_failed"
            )
            self.up = False
            self._on_failure(lost)
            raise lost from error
        except ValueError as error:
            raise InvalidRequest(f"vLLM refuses it: {error}") from error
        except RuntimeError as error:
            raise ModelError(f"vLLM could not do it: {error}", code="vllm_error") from error


def _prepare(folder: RunFolder, variables: Mapping[str, str]) -> None:
    """Sets up the environment variables that vLLM's child processes inherit, and this process's module path."""
    plugins = str(folder.plugins)
    sys.path.append(plugins)
    paths = [plugins, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    for name, value in USUAL.items():
        os.environ.setdefault(name, value)
    os.environ.update({**folder.variables(), **plugins_too(os.environ), **variables})


def _start(arguments: Sequence[str]) -> Any:
    import vllm

    check_version(vllm.__version__)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        read = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(list(arguments))
    except SystemExit as error:
        raise ConfigError(f"vLLM does not take {' '.join(arguments)}.", param="vllm.args") from error
    try:
        return AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(read))
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"vLLM did not start: {error}", param="backend") from error


def _prompt(query: VllmRequest) -> dict[str, Any]:
    return {"prompt_token_ids": list(query.request.prompt_ids), "cache_salt": query.salt}


def _scores(by_token: Sequence[Mapping[int, Any] | None], query: VllmRequest) -> PromptLogprobs:
    entries = [
        [(token, each.logprob, each.rank) for token, each in (entry or {}).items()] for entry in by_token
    ]
    return scores_of(query, entries)


def _lora(adapter: VllmAdapter | None) -> Any:
    from vllm.lora.request import LoRARequest

    return None if adapter is None else LoRARequest(adapter.inner_name, adapter.number, adapter.path)


def _piece(sample: Any, cached: int | None, wanted: int | None) -> OutputDelta:
    logprobs = top = None
    if wanted is not None and sample.logprobs is not None:
        entries = list(zip(sample.token_ids, sample.logprobs, strict=True))
        logprobs = [entry[token].logprob for token, entry in entries]
        top = [
            likeliest([(token, each.logprob, each.rank) for token, each in entry.items()], wanted)
            for _, entry in entries
        ]
    spans = [vars(span) for span in sample.weight_versions] if sample.weight_versions else None
    return OutputDelta(
        index=sample.index,
        tokens=list(sample.token_ids),
        logprobs=logprobs,
        top=top,
        finish_reason=sample.finish_reason,
        stop_reason=sample.stop_reason,
        versions=spread(spans),
        cached=cached,
    )
