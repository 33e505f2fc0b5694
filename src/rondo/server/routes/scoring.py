"""`/score` and `/rerank` of vLLM: similarity of two texts as the cosine of their vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.texts import RerankRequest, ScoreRequest, ScoringBody, Texts
from rondo.server.routes.embeddings import Embedder, Floats, Given, usage_of
from rondo.web.http import unless_gone


@dataclass(frozen=True)
class PairScorer:
    embedder: Embedder

    async def score(self, request: Request) -> Response:
        body, _ = await self.embedder.served.bodies.read(ScoreRequest, request)
        left, right = body.sides()
        lefts, rights = _listed(left[1]), _listed(right[1])
        if len(lefts) not in (1, len(rights)):
            raise InvalidRequest(
                f"{left[0]} has {len(lefts)} texts and {right[0]} has {len(rights)}: give one, or as many.",
                param=left[0],
            )
        scores, tokens = await self._scores(request, body, (left[0], lefts), (right[0], rights))
        data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)]
        return JSONResponse(self.embedder.head("score", body) | {"data": data, "usage": usage_of(tokens)})

    async def rerank(self, request: Request) -> Response:
        body, _ = await self.embedder.served.bodies.read(RerankRequest, request)
        documents = _listed(body.documents)
        scores, tokens = await self._scores(request, body, ("query", [body.query]), ("documents", documents))
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[: body.top_n or None]
        results = [
            {"index": i, "relevance_score": scores[i]}
            | ({"document": {"text": documents[i]}} if body.return_documents else {})
            for i in best
        ]
        head = self.embedder.head("rerank", body)
        return JSONResponse(
            {"id": head["id"], "model": head["model"], "usage": usage_of(tokens), "results": results}
        )

    async def _scores(
        self,
        request: Request,
        body: ScoringBody,
        queries: tuple[str, list[str]],
        documents: tuple[str, list[str]],
    ) -> tuple[list[float], int]:
        """One query for all documents, or one for each; and the tokens of all texts."""
        adapter = self.embedder.check(body, len(documents[1]), documents[0])
        sides = [
            Given(*queries, body.max_tokens_per_query or None),
            Given(*documents, body.max_tokens_per_doc or None),
        ]
        vectors = await unless_gone(request.receive, self.embedder.vectors(body, sides, adapter))
        rows = vectors.of_length_one(vectors.rows.shape[1])
        left, right = rows[: len(queries[1])], rows[len(queries[1]) :]
        scores: Floats = np.sum(left * right, axis=1)
        return scores.tolist(), vectors.prompt_tokens


def _listed(texts: Texts) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
