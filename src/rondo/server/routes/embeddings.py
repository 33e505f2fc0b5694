"""`/v1/embeddings`: texts in, vectors out. They are computed as requests that end with their last token."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rondo.base.errors import InvalidRequest, Unavailable
from rondo.base.ids import new_id
from rondo.client.protocol.refusals import blaming
from rondo.client.protocol.texts import EmbeddingRequest, PoolingBody
from rondo.client.protocol.wire import shown
from rondo.client.types import GenerateRequest, Pooling, SamplingParams
from rondo.models.architecture import ModelConfig
from rondo.server.answers.truncation import cut, texts_cut_to
from rondo.server.served import ServedModel
from rondo.web.http import gather, note_ignored, unless_gone

Floats = NDArray[np.float32]

MAX_INPUTS = 2048
MANY_NUMBERS = 1 << 16
"""So many are written beside the event loop."""
NO_ANSWER = SamplingParams(detokenize=False)


@dataclass(frozen=True)
class Dimensions:
    """Sizes of vectors, and their truncation, which needs a model trained for it (Matryoshka)."""

    size: int
    cut: bool
    only: Sequence[int] = ()

    @classmethod
    def of(cls, config: ModelConfig, allowed: bool) -> Dimensions:
        """Reads `config.json` as vLLM does, unless the server's settings allow truncation."""
        given = config.hf or {}
        only = given.get("matryoshka_dimensions")
        only = tuple(only) if isinstance(only, list) else ()
        return cls(config.hidden_size, allowed or bool(only) or bool(given.get("is_matryoshka")), only)

    def check(self, wanted: int | None) -> int:
        if wanted is None or wanted == self.size:
            return self.size
        if not self.cut:
            reason = (
                "of this model cannot be cut: a part of one means nothing. (Where the model was trained for it, "
                "the server's setting server.matryoshka says so.)"
            )
        elif wanted > self.size:
            reason = f"of this model have {self.size} dimensions."
        elif self.only and wanted not in self.only:
            reason = f"of this model may have {', '.join(map(str, self.only))} dimensions."
        else:
            return wanted
        raise InvalidRequest(f"dimensions cannot be {wanted}: vectors {reason}", param="dimensions")


@dataclass(frozen=True)
class Vectors:
    """One row a prompt, and how many tokens all of them had."""

    rows: Floats
    prompt_tokens: int

    def of_length_one(self, dimensions: int) -> Floats:
        """Cut to so many dimensions first."""
        rows = self.rows[:, :dimensions]
        lengths: Floats = np.linalg.norm(rows, axis=1, keepdims=True)
        return (rows / np.maximum(lengths, 1e-12)).astype(np.float32)


@dataclass(frozen=True)
class Given:
    """Texts, and their field in the request. `limit` cuts each, in addition to the body's limit."""

    name: str
    inputs: Sequence[str | list[int]]
    limit: int | None = None


@dataclass(frozen=True)
class Embedder:
    """From texts to vectors."""

    served: ServedModel
    pooling: Pooling
    dimensions: Dimensions

    async def embeddings(self, request: Request) -> Response:
        body, _ = await self.served.bodies.read(EmbeddingRequest, request)
        inputs = body.inputs()
        adapter = self.check(body, len(inputs), "input")
        dimensions = self.dimensions.check(body.dimensions)
        vectors = await unless_gone(request.receive, self.vectors(body, [Given("input", inputs)], adapter))
        rows = vectors.rows[:, :dimensions]
        if body.use_activation is not False:
            rows = vectors.of_length_one(dimensions)

        def render() -> Response:
            data = [
                {"index": i, "object": "embedding", "embedding": shown}
                for i, shown in enumerate(_shown(rows, body.encoding_format))
            ]
            usage = usage_of(vectors.prompt_tokens)
            return JSONResponse(self.head("embd", body) | {"data": data, "usage": usage})

        return render() if rows.size <= MANY_NUMBERS else await asyncio.to_thread(render)

    def head(self, prefix: str, body: PoolingBody) -> dict[str, Any]:
        model = self.served.shown(body.model or self.served.name)
        return {"id": new_id(prefix), "object": "list", "created": int(time.time()), "model": model}

    def check(self, body: PoolingBody, count: int, field: str) -> str | None:
        """Validates everything that does not depend on the texts. Returns the requested adapter."""
        note_ignored(body)
        adapter = self.served.adapter(body.model or self.served.name)
        self.served.check_priority(body.priority)
        most = min(MAX_INPUTS, self.served.max_queued)
        if not 1 <= count <= most:
            raise InvalidRequest(f"{field} has {count} texts: give 1 to {most} in one request.", param=field)
        keep = body.truncate_prompt_tokens
        if keep == 0 or (keep is not None and keep > self.served.max_model_len):
            raise InvalidRequest(
                f"truncate_prompt_tokens is {shown(keep)}: it may be 1 to {self.served.max_model_len}, the tokens of "
                "the context, or -1 for all of them.",
                param="truncate_prompt_tokens",
            )
        return adapter

    async def vectors(
        self,
        body: PoolingBody,
        fields: Sequence[Given],
        adapter: str | None,
    ) -> Vectors:
        """Vectors of all texts, in order. Computation starts after all are validated, with at most as many as the queue
        holds."""
        named: list[tuple[str, list[int]]] = []
        for field in fields:
            with blaming(field.name):
                prompts = await self._prompts(body, field.inputs, field.limit)
                self.served.prompts.check(prompts, field.name, answer=0)
            named += [(field.name, prompt) for prompt in prompts]
        id, salt = new_id("embd"), self.served.salts.of(body.cache_salt)
        requests = [
            GenerateRequest(f"{id}-{i}", prompt, NO_ANSWER, body.priority, adapter, self.pooling, salt)
            for i, (_, prompt) in enumerate(named)
        ]
        rows, most = [], self.served.max_queued
        with self.served.under_way(id, requests):
            work = [(name, request) for (name, _), request in zip(named, requests, strict=True)]
            for at in range(0, len(work), most):
                rows += await gather([self._vector(*one) for one in work[at : at + most]])
        return Vectors(np.array(rows, dtype=np.float32), sum(len(prompt) for _, prompt in named))

    async def _prompts(
        self, body: PoolingBody, inputs: Sequence[str | list[int]], limit: int | None
    ) -> list[list[int]]:
        given = (body.truncate_prompt_tokens, limit)
        keep = min((self.served.max_model_len if n == -1 else n for n in given if n), default=None)
        texts = [text for text in inputs if isinstance(text, str)]
        prompts, special, side = self.served.prompts, body.add_special_tokens, body.truncation_side or "right"
        if keep is None:
            encoded = iter(await prompts.of_texts(texts, special))
            return [next(encoded) if isinstance(one, str) else one for one in inputs]
        encoded = iter(await texts_cut_to(prompts, texts, special, keep, side))
        return [next(encoded) if isinstance(one, str) else cut(one, keep, side) for one in inputs]

    async def _vector(self, field: str, request: GenerateRequest) -> list[float]:
        with blaming(field):
            async with aclosing(self.served.engine.generate(request)) as chunks:
                async for chunk in chunks:
                    if chunk.vector is not None:
                        return chunk.vector
        raise Unavailable("the request was ended before its vector was there. Try again.", code="aborted")


def _shown(rows: Floats, encoding: str | None) -> Iterator[str | list[float]]:
    """Lists of numbers, or base64 of their little-endian bytes."""
    for row in rows:
        yield row.tolist() if encoding != "base64" else base64.b64encode(row.astype("<f4").tobytes()).decode()


def usage_of(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}
