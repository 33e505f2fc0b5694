"""Bodies of the OpenAI API: fields of requests and shapes of responses.

An unknown field, or a value that requests an unsupported feature, is a 400 with the field's name. Hints that clients
send by default and that have no effect (`user`, `metadata`, `verbosity`, ...) are accepted: see `Hints`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.forms import FormBody
from rondo.client.protocol.tools import ToolChoice, ToolDefinition, chosen, demanded
from rondo.client.protocol.wire import CacheSalt, Many, WireModel
from rondo.client.types import LogprobsMode, SamplingParams

TokenIds = Many[Annotated[int, Field(ge=0)]]

BOTH_ENDS = (
    "continue_final_message and add_generation_prompt exclude each other: continue the last message, or begin a "
    "new one."
)


class StreamOptions(WireModel):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False
    continuous_usage_stats: bool = False
    whole_samples: bool = False
    """Extension: a sample is sent only at its end, for clients with thousands of samples and no use for partial
    ones."""


PASSED_ON = (
    "temperature",
    "top_p",
    "n",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "min_tokens",
    "repetition_penalty",
    "stop_token_ids",
    "bad_words",
    "allowed_token_ids",
    "truncate_prompt_tokens",
    "best_of",
    "prompt_logprobs",
)
"""Fields passed to the engine under the same names; `None` is the engine's default."""


class SamplingBody(FormBody):
    """Common fields of chat and plain completions. `top_k`, `min_p`, ... are vLLM's extensions."""

    without_effect = frozenset(["user"])

    model: str
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    best_of: int | None = None
    seed: int | None = None
    stop: str | Many[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    user: str | None = None

    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    stop_token_ids: Many[int] | None = None
    bad_words: Many[str] | None = None
    allowed_token_ids: Many[int] | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: LogprobsMode = "raw"
    """Ours: "scaled" log-probabilities are those at the request's temperature, which a learner computes too."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: CacheSalt | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    spaces_between_special_tokens: Literal[True] = True
    use_beam_search: Literal[False] = False

    @property
    def whole_samples(self) -> bool:
        return self.stream_options is not None and self.stream_options.whole_samples

    def sampling(self, logprobs: int | None, max_tokens: int | None) -> SamplingParams:
        if self.stream and self.best_of not in (None, self.n or 1):
            raise InvalidRequest(
                "best_of cannot be streamed: which is best is known at the end.", param="best_of"
            )
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequest(
                "prompt_logprobs cannot be streamed: leave stream out.", param="prompt_logprobs"
            )
        options = {name: value for name in PASSED_ON if (value := getattr(self, name)) is not None}
        return SamplingParams(
            max_tokens=max_tokens,
            logprobs=logprobs,
            logprobs_mode=self.logprobs_mode,
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
            structured_outputs=self.form(),
            **options,
        )


class TextPart(WireModel):
    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A chat message. Other keys (`name`, `tool_call_id`, ...) are the chat template's business."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | Many[TextPart] | None = None
    tool_calls: Many[dict[str, Any]] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    def for_template(self) -> dict[str, Any]:
        message = self.model_dump(exclude_unset=True)
        if isinstance(self.content, list):
            message["content"] = "".join(part.text for part in self.content)
        return message


Verbosity = Literal["low", "medium", "high"]


class PromptCacheOptions(WireModel):
    mode: Literal["implicit"] | None = None
    ttl: Literal["30m"] | None = None


class Hints(WireModel):
    """OpenAI's fields that describe the caller or its preferences and have no effect here. Values with an effect, such
    as `store: true`, are refused."""

    without_effect: ClassVar[frozenset[str]] = frozenset(
        [
            *("metadata", "modalities", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
            *("safety_identifier", "service_tier", "store", "user", "verbosity"),
        ]
    )

    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: PromptCacheOptions | None = None


class ChatRequest(Hints, SamplingBody):
    messages: Many[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    modalities: Many[Literal["text"]] | None = None
    verbosity: Verbosity | None = None
    tools: Many[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool = True
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    """True by default, unless the last message is continued."""
    continue_final_message: bool = False

    @property
    def begins_answer(self) -> bool:
        return self.add_generation_prompt is not False and not self.continue_final_message

    def to_sampling(self) -> SamplingParams:
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(BOTH_ENDS, param="continue_final_message")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.sampling(logprobs, self.max_completion_tokens or self.max_tokens)

    def callable_tools(self) -> list[ToolDefinition]:
        """Tools that the model may call."""
        return chosen(self.tools or [], self.tool_choice)

    def required_tools(self) -> list[ToolDefinition]:
        """Tools of which the model must call one, if any."""
        return demanded(self.tools or [], self.tool_choice)


class CompletionRequest(SamplingBody):
    prompt: str | Many[str] | TokenIds | Many[TokenIds]
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool | None = None
    max_tokens: int | None = Field(None, ge=0)
    """0 is valid with `echo` and requests the prompt alone."""
    suffix: None = None
    add_special_tokens: bool = True

    def to_sampling(self) -> SamplingParams:
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("max_tokens may be 0 only with echo; got 0.", param="max_tokens")
        sampling = self.sampling(self.logprobs, 16 if self.max_tokens is None else max(self.max_tokens, 1))
        if not (self.echo and self.logprobs is not None):
            return sampling
        return sampling.with_(prompt_logprobs=max(self.logprobs, self.prompt_logprobs or 0))

    def prompts(self) -> list[str | list[int]]:
        prompt = self.prompt
        if prompt == []:
            raise InvalidRequest("prompt is an empty list: give at least one prompt.", param="prompt")
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt[0], int):
            return [list(prompt)]
        return cast(list[str | list[int]], prompt)


class ModelCard(WireModel):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "rondo"
    max_model_len: int | None = None
    parent: str | None = None
    """The base model of an adapter."""
    aliases: tuple[str, ...] = ()
    """Other names that requests may use."""


class ModelList(WireModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]
