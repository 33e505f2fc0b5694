"""The prefix cache as requests meet it: what is there of one already, and what it leaves for others.

Two that begin with the same new prefix do not both compute it: the first claims the block it computes next, and the
other is put off until it finds that block.
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
        """What was published before is never found again."""
        self.weight_version = version
        self._pool.forget()
        self._claims.clear()

    def begin(self, request: Request) -> None:
        """It is computed from its first token on, or from what is found of it."""
        if request.weight_version != self.weight_version:
            request.weight_version = self.weight_version
            request.keys = []
        request.publishable = self._pool.prefix_cache

    def find(self, request: Request, limit: int) -> list[Table]:
        """The blocks that hold its first tokens, at most `limit` of them. A mean, and a prompt's scores, are
        over what is computed."""
        unscored = request.scores is not None and not request.scores.complete
        if not self._pool.prefix_cache or unscored or request.pooling == "mean":
            return self._pool.none()
        root = self._root(request)
        self._pool.extend_keys(request.keys, root, request.tokens)
        return self._pool.match(request.keys, root, request.tokens, limit)

    def next_key(self, request: Request, block: int) -> int | None:
        """The chain key of the first block this request computes for others to find; None if it will fill none."""
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
        """Makes its full blocks findable, and claims the one that it computes next if it had claimed one before."""
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
