"""Weight directory in etcd, through aetcd.

PREFIX/writer/MODEL                 the writer's name, under its lease; the revision is the fencing token
PREFIX/versions/MODEL/VERSION       checksum, bytes and number of tensors of a version; replaced when no holder is left
PREFIX/holders/MODEL/VERSION/OWNER  a holder's address, under its lease

An entry has about a hundred bytes, and a receiver reads a limited number of them, independent of the number of holders.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote

from rondo.base.errors import MissingExtra, RondoError, Unavailable
from rondo.weights.directory.types import (
    Published,
    check_age,
    check_checksum,
    expired,
    has_writer,
    no_version,
    not_the_writer,
)

PREFIX = "/rondo/weights"
KEPT = 64
"""Versions whose records are kept."""
MOST_HOLDERS = 64
"""Holders that a receiver reads. The latest ones are least loaded, because later receivers fetch from them."""
CALL_SECONDS = 10.0
PATIENCE_SECONDS = 30.0
"""Time in which calls are repeated while etcd has no leader or restarts."""
T = TypeVar("T")


class EtcdDirectory:
    """Calls run on an event loop in a thread of their own, so that learners and engines need none."""

    def __init__(
        self,
        endpoints: Sequence[str],
        lease_s: float = 30.0,
        patience_s: float = PATIENCE_SECONDS,
        prefix: str = PREFIX,
    ) -> None:
        try:
            import aetcd
        except ImportError as error:
            raise MissingExtra("aetcd", "etcd") from error
        self._aetcd: Any = aetcd
        self._endpoints = [_endpoint(each) for each in endpoints]
        self._lease_s, self._patience_s, self._prefix = max(1, round(lease_s)), patience_s, prefix
        self._client: Any = None
        self._leases: dict[str, int] = {}
        """Number of each owner's lease."""
        self._lapsed = set[str]()
        """Owners whose entries have expired without their notice."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rondo-etcd", daemon=True)
        self._thread.start()

    def claim(self, model: str, owner: str, token: int | None = None) -> int:
        return self._call(lambda client: self._claim(client, model, owner, token))

    def check(self, model: str, token: int) -> None:
        self._call(lambda client: self._check(client, model, token))

    def release(self, model: str, token: int) -> None:
        self._call(lambda client: self._release(client, model, token))

    def publish(self, entry: Published, token: int | None = None) -> None:
        self._call(lambda client: self._publish(client, entry, token))

    def renew(self, owner: str) -> None:
        self._call(lambda client: self._renew(client, owner))

    def withdraw(self, model: str, version: int, owner: str) -> None:
        key = self._holder(model, version, owner)
        self._call(lambda client: client.delete(key.encode()))

    def lookup(self, model: str, version: int | None = None) -> list[Published]:
        found = self._call(lambda client: self._lookup(client, model, version))
        if not found:
            raise no_version(model, version)
        return found

    def watch(self, model: str, after: int, seconds: float) -> list[Published]:
        until = time.monotonic() + seconds
        return self._call(lambda client: self._watch(client, model, after, until), seconds)

    def close(self) -> None:
        """Ends the leases, and with them the entries of this process's owners."""

        async def end() -> None:
            for lease in self._leases.values():
                with suppress(Exception):
                    client = await self._connected()
                    await asyncio.wait_for(client.revoke_lease(lease), CALL_SECONDS)
            await self._disconnect()

        with suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(end(), self._loop).result(2 * CALL_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS)

    async def _claim(self, client: Any, model: str, owner: str, token: int | None) -> int:
        lease = await self._lease(client, owner)
        key, tx = self._writer(model), client.transactions
        while True:
            found = await client.get(key)
            # A call that was repeated has perhaps claimed the model before, under the same lease.
            if found is not None and (
                found.value.decode() != owner
                or (token not in (None, found.mod_revision) and found.lease != lease)
            ):
                raise has_writer(model, found.value.decode())
            revision = 0 if found is None else found.mod_revision
            won, _ = await client.transaction(
                compare=[tx.mod(key) == revision],
                success=[tx.put(key, owner.encode(), lease)],
                failure=[],
            )
            if won:
                now = await client.get(key)
                if now is not None and now.value.decode() == owner:
                    return int(now.mod_revision)

    async def _check(self, client: Any, model: str, token: int) -> None:
        known = await client.get(self._writer(model))
        if known is None or known.mod_revision != token:
            raise not_the_writer(model, "gone" if known is None else known.value.decode())

    async def _release(self, client: Any, model: str, token: int) -> None:
        key, tx = self._writer(model), client.transactions
        await client.transaction(compare=[tx.mod(key) == token], success=[tx.delete(key)], failure=[])

    async def _publish(self, client: Any, entry: Published, token: int | None) -> None:
        model, version, tx = entry.model, entry.version, client.transactions
        lease = await self._lease(client, entry.owner)
        writer, key = self._writer(model), self._record(model, version)
        holders = self._holder(model, version, "").encode()
        record = json.dumps([entry.checksum, entry.nbytes, entry.tensors]).encode()
        holder = tx.put(self._holder(model, version, entry.owner).encode(), entry.source.encode(), lease)
        while True:
            newest, present = await self._newest(client, model), await client.get(key)
            held = present is not None and bool(await self._range(client, holders, limit=1))
            if token is not None:
                await self._check(client, model, token)
            elif version > newest and (known := await client.get(writer)) is not None:
                raise not_the_writer(model, known.value.decode())
            if held:
                check_checksum(json.loads(present.value)[0], entry.checksum, model, version, "another holder")
            check_age(model, version, newest, held and token is None)
            compare = [tx.mod(key) == (0 if present is None else present.mod_revision)]
            if token is not None:
                compare.append(tx.mod(writer) == token)
            puts = [holder]
            if not held:
                compare.append(tx.create(holders, self._aetcd.utils.prefix_range_end(holders)) == 0)
                puts.append(tx.put(key, record))
            won, _ = await client.transaction(compare=compare, success=puts, failure=[])
            if won:
                if not held:
                    await self._forget(client, model, version)
                return

    async def _forget(self, client: Any, model: str, version: int) -> None:
        """Removes the records of versions long past."""
        await client.delete_range(self._record(model, 0), self._record(model, max(version - KEPT, 0)))

    async def _renew(self, client: Any, owner: str) -> None:
        lease = self._leases.get(owner)
        if lease is None and owner not in self._lapsed:
            return
        if lease is None or not (await client.refresh_lease(lease)).TTL:
            self._leases.pop(owner, None)
            self._lapsed.discard(owner)
            raise expired(owner)

    async def _versions(self, client: Any, model: str) -> list[int]:
        found = await client.get_prefix(f"{self._at('versions', model)}/".encode(), keys_only=True)
        return [int(each.key.decode().rpartition("/")[2]) for each in found]

    async def _lookup(self, client: Any, model: str, version: int | None, after: int = -1) -> list[Published]:
        """Holders of one version, by default of the newest that has any."""
        known = await self._versions(client, model) if version is None else [version]
        for each in sorted((each for each in known if each > after), reverse=True):
            record = await client.get(self._record(model, each))
            holders = await self._latest(client, self._holder(model, each, "").encode())
            if record is not None and holders:
                checksum, nbytes, tensors = json.loads(record.value)
                return [
                    Published(model, each, owner, checksum, nbytes, tensors, source)
                    for owner, source in holders
                ]
        return []

    async def _latest(self, client: Any, prefix: bytes) -> list[tuple[str, str]]:
        """Names and values of the keys under a prefix, the latest ones."""
        found = await self._range(client, prefix, MOST_HOLDERS)
        return [(each.key.decode().rpartition("/")[2], each.value.decode()) for each in found]

    async def _newest(self, client: Any, model: str) -> int:
        """Newest version that has a holder; -1 if there is none."""
        prefix = f"{self._at('holders', model)}/".encode()
        found = await self._range(client, prefix, 1, "KEY")
        return int(found[0].key.decode().split("/")[-2]) if found else -1

    async def _range(self, client: Any, prefix: bytes, limit: int, order: str = "CREATE") -> Sequence[Any]:
        """Keys under a prefix in descending order."""
        kind = self._aetcd.rpc.RangeRequest
        request = kind(
            key=prefix,
            range_end=self._aetcd.utils.prefix_range_end(prefix),
            limit=limit,
            sort_order=kind.DESCEND,
            sort_target=kind.SortTarget.Value(order),
        )
        answer = await client.kvstub.Range(request, timeout=CALL_SECONDS, metadata=client.metadata)
        return list(answer.kvs)

    async def _watch(self, client: Any, model: str, after: int, until: float) -> list[Published]:
        watched = await client.watch_prefix(f"{self._at('versions', model)}/".encode())
        events = aiter(watched)
        event = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                if found := await self._lookup(client, model, None, after):
                    return found
                # A connection that is lost ends no watch: the state is read again once a second.
                wait = min(1.0, until - time.monotonic())
                if wait <= 0:
                    return []
                done, _ = await asyncio.wait({event}, timeout=wait)
                if done:
                    event = asyncio.ensure_future(anext(events, None))
        finally:
            event.cancel()
            with suppress(Exception):
                await watched.cancel()

    async def _lease(self, client: Any, owner: str) -> int:
        if owner not in self._leases:
            self._leases[owner] = (await client.lease(self._lease_s)).id
        return self._leases[owner]

    def _at(self, kind: str, model: str) -> str:
        return f"{self._prefix}/{kind}/{quote(model, safe='')}"

    def _writer(self, model: str) -> bytes:
        return self._at("writer", model).encode()

    def _record(self, model: str, version: int) -> bytes:
        return f"{self._at('versions', model)}/{version:020d}".encode()

    def _holder(self, model: str, version: int, owner: str) -> str:
        return f"{self._at('holders', model)}/{version:020d}/{owner}"

    def _call(self, work: Callable[[Any], Coroutine[Any, Any, T]], more_seconds: float = 0.0) -> T:
        future = asyncio.run_coroutine_threadsafe(self._repeated(work, more_seconds), self._loop)
        return future.result()

    async def _repeated(self, work: Callable[[Any], Coroutine[Any, Any, T]], more_seconds: float) -> T:
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return await asyncio.wait_for(work(await self._connected()), CALL_SECONDS + more_seconds)
            except RondoError:
                raise
            except Exception as error:
                await self._disconnect()
                if "lease not found" in str(error):
                    # Expired: the entries are made again under another lease, and `renew` reports the earlier ones.
                    self._lapsed |= self._leases.keys()
                    self._leases.clear()
                if time.monotonic() > until:
                    raise Unavailable(
                        f"etcd at {', '.join(f'{h}:{p}' for h, p in self._endpoints)} does not answer "
                        f"({type(error).__name__}). Start it, or restore its quorum.",
                        code="directory_unavailable",
                    ) from error
                await asyncio.sleep(0.2)

    async def _connected(self) -> Any:
        if self._client is None:
            host, port = self._endpoints[0]
            self._endpoints = [*self._endpoints[1:], self._endpoints[0]]
            client = self._aetcd.Client(host=host, port=port)
            await client.connect()
            self._client = client
        return self._client

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                await client.close()


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.strip("/").rpartition(":")
    return (host, int(port)) if host else (port, 2379)
