"""Offline inference: prompts to finished samples in the caller's own thread, for scripts and rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from rondo.base.errors import ConfigError, InvalidRequest
from rondo.base.ids import new_id
from rondo.base.storage.paths import path_of
from rondo.client.protocol.openai import ChatMessage
from rondo.client.ranking import best, spread
from rondo.client.types import CompletionOutput, GenerateRequest, RequestOutput, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.load import load_core
from rondo.engine.entrypoints.output import SampleReader, TextSource
from rondo.engine.entrypoints.token_limits import truncated, with_bad_words
from rondo.engine.schedule.request import Request
from rondo.engine.speculate.make import check_tokenizer
from rondo.models import Decoder
from rondo.models.store import resolve
from rondo.text.conversation.messages import adapt_messages
from rondo.text.conversation.variables import template_variables
from rondo.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Conversation = Sequence[Mapping[str, Any]]
AdapterNames = str | Sequence[str | None] | None
OnEnded = Callable[[list[tuple[int, CompletionOutput]]], None]
"""Callback after a step, with the samples that ended in it, each with the index of its prompt."""


class LLM:
    """`LLM("demo").generate(["Hello"], SamplingParams(max_tokens=20))`, with an interface like vLLM's.

    The model is a name under `RONDO_HOME/models`, a folder, or the hash of a job that has produced one. A `Decoder` is
    used as it is, with shared tensors: its trainer must call `start_weight_update` and `finish_weight_update`.
    """

    def __init__(
        self,
        model: Decoder | str | Path,
        tokenizer: TextSource | None = None,
        config: EngineConfig | None = None,
        eos_ids: Sequence[int] | None = None,
        weight_version: int = 0,
    ) -> None:
        self.config = config = config or EngineConfig()
        if isinstance(model, Decoder):
            _check_whole(config)
            self.tokenizer = tokenizer
            self.core = EngineCore(model, config, _given(eos_ids, tokenizer), weight_version)
            self.core.grammars.set_tokenizer(tokenizer)
            return
        path = resolve(model)
        if tokenizer is None:
            own = Tokenizer.load(path)
            check_tokenizer(config, own)
            tokenizer = cast(TextSource, own)
        self.tokenizer = tokenizer
        self.core = load_core(path, config, _given(eos_ids, tokenizer), weight_version)
        self.core.grammars.set_tokenizer(tokenizer)

    @property
    def weight_version(self) -> int:
        return self.core.weight_version

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: AdapterNames = None,
        on_ended: OnEnded | None = None,
    ) -> list[RequestOutput]:
        """Returns one output per prompt, in order, each with its `n` samples. A prompt is text or token ids. `adapter`
        is one name for all prompts, or one per prompt; None is the base model."""
        given = as_prompts(prompts)
        each = [params or SamplingParams()] * len(given) if not isinstance(params, Sequence) else list(params)
        if len(each) != len(given):
            raise InvalidRequest(f"{len(given)} prompts but {len(each)} sampling parameters.", param="params")
        names = as_names(adapter, len(given))
        requests = [
            GenerateRequest(new_id("gen"), self._cut(prompt, sampling), self._checked(sampling), adapter=name)
            for prompt, sampling, name in zip(given, each, names, strict=True)
        ]
        done: dict[tuple[str, int], CompletionOutput] = {}
        numbers = {request.id: number for number, request in enumerate(requests)}

        def ended(samples: list[Request]) -> None:
            if on_ended is not None:
                done.update((sample.name, self._completion(sample)) for sample in samples)
                on_ended([(numbers[sample.id], done[sample.name]) for sample in samples])

        readers = self._run(requests, ended)
        return [
            self._output(prompt, request, readers[i], each[i], done)
            for i, (prompt, request) in enumerate(zip(given, requests, strict=True))
        ]

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        adapter: AdapterNames = None,
    ) -> list[RequestOutput]:
        """`generate` for one conversation or several, each rendered with the tokenizer's chat template. `tools` are
        passed to the template, as are its own variables in `chat_template_kwargs`."""
        if not isinstance(self.tokenizer, Tokenizer):
            raise InvalidRequest(
                "chat needs a tokenizer with a chat template: use generate.", param="messages"
            )
        variables = template_variables(chat_template_kwargs)
        template = (self.tokenizer.tool_template if tools else self.tokenizer.chat_template) or ""
        texts = [
            self.tokenizer.render(
                adapt_messages(for_template(conversation), template),
                tools,
                add_generation_prompt,
                continue_final_message=continue_final_message,
                **variables,
            )
            for conversation in as_conversations(messages)
        ]
        prompts = self.tokenizer.encode_batch(texts, add_special=False)
        outputs = self.generate(prompts, sampling_params, adapter=adapter)
        return [replace(output, prompt=text) for output, text in zip(outputs, texts, strict=True)]

    def reset_prefix_cache(self) -> None:
        """Empties the prefix cache: prompts are recomputed even if they share a prefix with earlier ones."""
        self.core.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Frees the KV cache and moves the weights to CPU memory (1) or drops them (2)."""
        self.core.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """`tags` are "weights" and "kv_cache", both by default."""
        self.core.wake(tags)

    def close(self) -> None:
        """Ends the other tensor-parallel processes, if there are any; garbage collection of the object does so too."""
        self.core.close()

    def load_adapter(self, name: str, path: str | Path, replace: bool = False) -> None:
        """Serves the adapter in the folder `path` as `name`; with `replace`, the name may be in use."""
        self.core.load_adapter(name, path, replace)

    def unload_adapter(self, name: str) -> None:
        self.core.unload_adapter(name)

    def update_weights(self, path: str | Path, version: int) -> None:
        """Switches to the weights in the folder `path`, of the same architecture. On an error the engine continues with
        the old weights."""
        # Ranks may have another working directory.
        self.core.update_weights(path_of(path, "path").absolute(), version)

    def start_weight_update(self) -> None:
        self.core.start_weight_update()

    def finish_weight_update(self, version: int) -> None:
        self.core.finish_weight_update(version)

    def abort_weight_update(self) -> None:
        self.core.abort_weight_update()

    def _run(
        self, requests: list[GenerateRequest], ended: Callable[[list[Request]], None] = lambda samples: None
    ) -> list[list[Request]]:
        """Runs the requests to the end and returns the samples of each. If one fails, all are aborted."""
        try:
            return self._work_off(requests, ended)
        except BaseException:
            self.core.abort_all()
            raise

    def _work_off(
        self, requests: list[GenerateRequest], ended: Callable[[list[Request]], None]
    ) -> list[list[Request]]:
        """Adds requests as the queue has room and steps until all are done."""
        core = self.core
        samples: list[list[Request]] = []
        matching: dict[tuple[str, int], SampleReader] = {}
        pending = iter(requests)
        upcoming = next(pending, None)
        while upcoming is not None or core.has_work:
            while upcoming is not None and self._fits(upcoming):
                samples.append(core.add(upcoming))
                if upcoming.sampling.stop:
                    matching |= {sample.name: SampleReader(sample, self.tokenizer) for sample in samples[-1]}
                upcoming = next(pending, None)
            step = core.step()
            for request in step.finished:
                if request.error is not None:
                    raise request.error
            stopped = self._match_stops(step.advanced, matching) if matching else []
            if step.finished or stopped:
                ended([*step.finished, *stopped])
        return samples

    def _fits(self, request: GenerateRequest) -> bool:
        """Whether the request can be added now. A request that can never fit is refused by the core
        instead of waiting."""
        core = self.core
        if not core.has_work:
            return True
        room = core.scheduler.num_waiting + request.sampling.n <= self.config.max_queued
        ready = core.grammars.has(request.sampling.structured_outputs)
        return room and ready and core.adapters.has_room(request.adapter)

    def _match_stops(
        self, advanced: list[Request], matching: dict[tuple[str, int], SampleReader]
    ) -> list[Request]:
        """Returns the samples that a stop string has ended."""
        stopped: list[Request] = []
        for request in advanced:
            reader = matching.get(request.name)
            if reader is None:
                continue
            chunk = reader.read()
            if chunk is not None and chunk.finish_reason == "stop" and isinstance(chunk.stop_reason, str):
                request.stop_reason = chunk.stop_reason
                stopped += self.core.abort(request.id, request.index, reason="stop")
        return stopped

    def _output(
        self,
        prompt: Prompt,
        request: GenerateRequest,
        samples: list[Request],
        params: SamplingParams,
        done: Mapping[tuple[str, int], CompletionOutput],
    ) -> RequestOutput:
        return RequestOutput(
            request_id=request.id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=list(request.prompt_ids),
            outputs=best([done.get(sample.name) or self._completion(sample) for sample in samples], params),
            cached_tokens=max(samples[0].first_cached, 0),
            prompt_logprobs=None if samples[0].scores is None else samples[0].scores.read(),
        )

    def _completion(self, sample: Request) -> CompletionOutput:
        chunk = SampleReader(sample, self.tokenizer).read()
        assert chunk is not None
        return CompletionOutput(
            index=chunk.index,
            text=chunk.text,
            token_ids=chunk.token_ids,
            weight_versions=chunk.weight_versions,
            logprobs=chunk.logprobs,
            top_logprobs=chunk.top_logprobs,
            finish_reason=chunk.finish_reason,
            stop_reason=chunk.stop_reason,
        )

    def _cut(self, prompt: Prompt, params: SamplingParams) -> Sequence[int]:
        return truncated(self._ids(prompt), params, self.core.max_model_len)

    def _ids(self, prompt: Prompt) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        if self.tokenizer is None:
            raise InvalidRequest(
                "this engine has no tokenizer: give token ids instead of text.", param="prompt"
            )
        return self.tokenizer.encode(prompt)

    def _checked(self, params: SamplingParams) -> SamplingParams:
        if params.stop and self.tokenizer is None:
            raise InvalidRequest("stop strings need a tokenizer: use stop_token_ids instead.", param="stop")
        return spread(with_bad_words(params, self.tokenizer))


def _check_whole(config: EngineConfig) -> None:
    if config.tensor_parallel > 1:
        raise ConfigError(
            f"tensor_parallel is {config.tensor_parallel}, but the model is in this process already, and whole. "
            "Set it to 1, or give the model's folder.",
            param="tensor_parallel",
        )


def _given(eos_ids: Sequence[int] | None, tokenizer: TextSource | None) -> tuple[int, ...] | None:
    """The tokens that end an answer; None leaves them to the model's config."""
    if eos_ids is not None:
        return tuple(eos_ids)
    return tuple(getattr(tokenizer, "eos_ids", None) or ()) or None


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Wraps a single prompt in a list."""
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


def as_names(adapter: AdapterNames, count: int) -> list[str | None]:
    """Expands one name for all prompts to one name per prompt."""
    names = [adapter] * count if adapter is None or isinstance(adapter, str) else list(adapter)
    if len(names) != count:
        raise InvalidRequest(f"{count} prompts but {len(names)} adapters.", param="adapter")
    return names


def as_conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """Wraps a single conversation in a list."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise _not_messages(messages)
    if any(isinstance(one, Mapping) for one in messages):
        return [cast(Conversation, messages)]
    return list(cast(Sequence[Conversation], messages))


def for_template(conversation: Conversation) -> list[dict[str, Any]]:
    """Validates messages like the server does and joins lists of text parts."""
    if not isinstance(conversation, Sequence) or isinstance(conversation, str):
        raise _not_messages(conversation)
    messages = []
    for message in conversation:
        try:
            messages.append(ChatMessage.model_validate(message, strict=True).for_template())
        except ValidationError:
            raise _not_messages(message) from None
    return messages


def _not_messages(given: object) -> InvalidRequest:
    shown = repr(given)
    return InvalidRequest(
        "messages must be a list of {role, content}, content a text or a list of text parts, or a list of such "
        f"lists; got {shown if len(shown) <= 80 else shown[:77] + '...'}.",
        param="messages",
    )
