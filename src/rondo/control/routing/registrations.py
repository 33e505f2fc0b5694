"""Engines that were registered or drained by API, in the store: they outlast a gateway, and gateways of one store share
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from rondo.control.store.dialect import insert
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import engines

_columns = engines.c


@dataclass(frozen=True)
class StoredEngine:
    id: str
    url: str | None
    """None if the engine has another source, such as the configuration, and only its drain is stored."""
    draining: bool


class EngineBook:
    """Each row belongs to a host, or to the empty name if the engine's address is the same for every host."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def all(self, hosts: Sequence[str]) -> Pending[list[StoredEngine]]:
        wanted = sa.select(_columns.id, _columns.url, _columns.draining).where(_columns.host.in_(hosts))
        wanted = wanted.order_by(_columns.host, _columns.id)
        return self.store.read(lambda db: [StoredEngine(*row) for row in db.execute(wanted)])

    def register(self, host: str, id: str, url: str) -> Pending[None]:
        """An engine that receives requests: the drain of a former engine at this address ends."""
        return self._put(host, id, {"url": url, "draining": False})

    def drain(self, host: str, id: str) -> Pending[None]:
        return self._put(host, id, {"draining": True})

    def resume(self, host: str, id: str) -> Pending[None]:
        mine = _columns.host == host, _columns.id == id

        def work(db: sa.Connection) -> None:
            db.execute(sa.update(engines).where(*mine).values(draining=False))
            db.execute(sa.delete(engines).where(*mine, _columns.url.is_(None)))

        return self.store.write(work)

    def remove(self, host: str, id: str) -> Pending[None]:
        """Ends a registration. The drain of an engine with another source stays."""
        mine = _columns.host == host, _columns.id == id, _columns.url.is_not(None)

        def work(db: sa.Connection) -> None:
            db.execute(sa.delete(engines).where(*mine))

        return self.store.write(work)

    def _put(self, host: str, id: str, values: dict[str, str | bool]) -> Pending[None]:
        def work(db: sa.Connection) -> None:
            row = insert(db.dialect.name, engines).values(host=host, id=id, **values)
            db.execute(row.on_conflict_do_update(index_elements=[_columns.host, _columns.id], set_=values))

        return self.store.write(work)
