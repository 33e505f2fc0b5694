"""Bodies of requests about texts: embeddings, scores, reranking, tokens."""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import Field

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.openai import BOTH_ENDS, ChatMessage, TokenIds
from rondo.client.protocol.tools import ToolDefinition
from rondo.client.protocol.wire import CacheSalt, Many, WireModel

Side = Literal["left", "right"]
"""Side that is cut; with `right` the first tokens remain."""
Texts = str | Many[str]
NAMES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
"""vLLM's names for the two sides."""


class PoolingBody(WireModel):
    """Common fields of requests for vectors. All except `user` and `model` are vLLM's."""

    without_effect = frozenset(["user"])

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    truncation_side: Side | None = None
    add_special_tokens: bool = True
    priority: int = 0
    cache_salt: CacheSalt | None = None


class EmbeddingRequest(PoolingBody):
    input: str | Many[str] | TokenIds | Many[TokenIds]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    use_activation: bool | None = None

    def inputs(self) -> list[str | list[int]]:
        given = self.input
        if isinstance(given, str):
            return [given]
        if given and isinstance(given[0], int):
            return [given]
        return cast("list[str | list[int]]", given)


class ScoringBody(PoolingBody):
    """A limit of 0 tokens is none."""

    max_tokens_per_query: int = Field(0, ge=0)
    max_tokens_per_doc: int = Field(0, ge=0)


class ScoreRequest(ScoringBody):
    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None

    def sides(self) -> tuple[tuple[str, Texts], tuple[str, Texts]]:
        """Names and contents of the two given fields."""
        given = {name: getattr(self, name) for pair in NAMES for name in pair}
        given = {name: value for name, value in given.items() if value is not None}
        for left, right in NAMES:
            if set(given) == {left, right}:
                return (left, given[left]), (right, given[right])
        pairs = ", ".join(" with ".join(pair) for pair in NAMES)
        raise InvalidRequest(
            f"give two fields to compare, one of: {pairs}.", param=next(iter(given), "text_1")
        )


class RerankRequest(ScoringBody):
    query: str
    documents: Texts
    top_n: int = Field(0, ge=0)
    return_documents: bool = True


class TokenizeRequest(WireModel):
    """A text, or a conversation. `add_special_tokens` is true by default for a text, and false for a conversation,
    whose template writes them."""

    model: str | None = None
    prompt: str | None = None
    messages: Many[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Many[ToolDefinition] | None = None
    return_token_strs: bool | None = None

    def checked(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("give either prompt or messages.", param="prompt")
        if self.prompt is not None:
            chat = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")
            wrong = next((name for name in chat if getattr(self, name)), None)
            if wrong:
                raise InvalidRequest(f"{wrong} is for messages: a prompt has none.", param=wrong)
        elif self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(BOTH_ENDS, param="continue_final_message")
        return self


class DetokenizeRequest(WireModel):
    model: str | None = None
    tokens: TokenIds
