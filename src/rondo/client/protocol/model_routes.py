"""Model routes of an engine server, which a gateway passes on, with the types that validate their bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from rondo.client.protocol.events import ChatCompletionChunk, CompletionChunk, ResponseEvent
from rondo.client.protocol.openai import ChatRequest, CompletionRequest
from rondo.client.protocol.responses import InputTokensRequest, ResponsesRequest
from rondo.client.protocol.texts import (
    DetokenizeRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
)
from rondo.client.protocol.wire import WireModel


@dataclass(frozen=True)
class ModelRoute:
    summary: str
    body: type[WireModel]
    event: type[BaseModel] | None = None
    """The JSON of the events of a stream."""


_RERANK = ModelRoute("Documents ranked by their similarity to a query", RerankRequest)
_SCORE = ModelRoute("Similarity of texts: the cosine of their vectors", ScoreRequest)
MODEL_ROUTES: Mapping[str, ModelRoute] = {
    "/v1/chat/completions": ModelRoute("Answer a conversation", ChatRequest, ChatCompletionChunk),
    "/v1/completions": ModelRoute("Continue prompts", CompletionRequest, CompletionChunk),
    "/v1/responses": ModelRoute("Answer a response request", ResponsesRequest, ResponseEvent),
    "/v1/responses/input_tokens": ModelRoute("Tokens of a response's prompt", InputTokensRequest),
    "/v1/embeddings": ModelRoute("Vectors of texts", EmbeddingRequest),
    **dict.fromkeys(("/score", "/v1/score"), _SCORE),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), _RERANK),
    "/tokenize": ModelRoute("Tokens of a text or a conversation", TokenizeRequest),
    "/detokenize": ModelRoute("Text of tokens", DetokenizeRequest),
}
"""Routes of POST requests by path."""
