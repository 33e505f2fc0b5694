"""Judges of graders: requests to the models behind this gateway, with the rights and the quota of a key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rondo.control.key import Key
from rondo.gateway.auth import Authenticator
from rondo.gateway.proxy.forward import Forward

Usage = dict[str, dict[str, int]]
"""Token counts of judges by model."""


class Judges:
    def __init__(self, forward: Forward, auth: Authenticator) -> None:
        self.forward, self.auth = forward, auth

    @contextmanager
    def of(self, key: Key) -> Iterator[Usage]:
        """Within it, graders of this task use this gateway's models for judges. The rights are the key's, for
        inference alone."""
        import httpx

        from rondo.client.answers import checked
        from rondo.graders.judges.endpoint import own_models

        rights = key.rights
        role = "user" if rights.role == "worker" else rights.role
        usage: Usage = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
        transport = httpx.ASGITransport(app=self.forward)
        with self.auth.lend(replace(key, rights=replace(rights, role=role, scopes=("inference",)))) as text:
            http = httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=None)

            async def post(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
                answer = checked(
                    await http.post(path, json=body, headers={"Authorization": f"Bearer {text}"})
                )
                _count(usage[str(body.get("model"))], answer)
                return answer

            token = own_models.set(post)
            try:
                yield usage
            finally:
                own_models.reset(token)


COUNTS = ("invocation_count", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens")


def _count(sums: dict[str, int], answer: Mapping[str, Any]) -> None:
    given = answer.get("usage")
    counts = given if isinstance(given, Mapping) else {}
    sums["invocation_count"] += 1
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        sums[name] += int(counts.get(name) or 0)
    sums["cached_tokens"] += int((counts.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
