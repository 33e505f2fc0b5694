"""Prefix caching from the point of view of a request: lookup of its prefix and publication of its blocks.

Two requests with the same new prefix do not both compute it: the first claims the block that it computes next, and the
other is deferred until that block is in the cache.
"""

from __future__ import annotations

from rondo.engine.kv.blocks import Table
from rondo.engine.kv.groups import GroupedPool
from rondo.engine.schedule.request import Request


class Prefixes:
    def __init__(self, pool: GroupedPool, weight_version: int = 0) -> None:
        self.weight_version = weight_version
        self._pool = pool
        self._claims: set[int] = set()

    def set_weight_version(self, version: int) -> None:
        """Empties the cache; blocks of earlier versions are never hit again."""
        self.weight_version = version
        self._pool.forget()
        self._claims.clear()

    def begin(self, request: Request) -> None:
        """Resets the request's cache state before it is computed from its first token or from its cached prefix."""
        if request.weight_version != self.weight_version:
            request.weight_version = self.weight_version
            request.keys = []
        request.publishable = self._pool.prefix_cache

    def find(self, request: Request, limit: int) -> list[Table]:
        """Blocks of the request's cached prefix, at most `limit` of them. Mean pooling and prompt scores need every
        token computed, so that such requests have no hits."""
        unscored = request.scores is not None and not request.scores.complete
        if not self._pool.prefix_cache or unscored or request.pooling == "mean":
            return self._pool.none()
        root = self._root(request)
        self._pool.extend_keys(request.keys, root, request.tokens)
        return self._pool.match(request.keys, root, request.tokens, limit)

    def next_key(self, request: Request, block: int) -> int | None:
        """Hash key of the first full block that the request will compute and publish; None if there is none."""
        whole = (len(request.tokens) - 1) // self._pool.block_size
        return request.keys[block] if request.publishable and block < min(whole, len(request.keys)) else None

    def is_claimed(self, key: int | None) -> bool:
        return key in self._claims

    def claim(self, request: Request, key: int | None) -> None:
        if key is not None:
            request.claim = key
            self._claims.add(key)

    def unclaim(self, request: Request) -> None:
        if request.claim is not None:
            self._claims.discard(request.claim)
            request.claim = None

    def publish(self, request: Request) -> None:
        """Publishes the request's full blocks. If it had a claim, it claims its next block."""
        if not request.publishable:
            return
        self._publish_full(request)
        if request.claim is not None:
            self.unclaim(request)
            self.claim(request, self.next_key(request, request.published))

    def _publish_full(self, request: Request) -> None:
        root = self._root(request)
        full = request.computed // self._pool.block_size
        if len(request.keys) < full:
            self._pool.extend_keys(request.keys, root, request.tokens)
        while request.published < full:
            if not self._pool.publish(request, request.published, root):
                request.publishable = False
                return
            request.published += 1

    def _root(self, request: Request) -> int:
        return self._pool.root(request.weight_version, request.adapter_key, request.salt)
