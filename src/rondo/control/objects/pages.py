"""Lists of objects in pages, as OpenAI's API has them: `after`, `limit`, `order`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import sqlalchemy as sa

from rondo.base.errors import InvalidRequest

T = TypeVar("T")
Order = Literal["asc", "desc"]


@dataclass(frozen=True)
class ObjectPage(Generic[T]):
    data: list[T]
    has_more: bool


@dataclass(frozen=True)
class PageQuery:
    after: str | None = None
    limit: int = 20
    order: Order = "desc"


def rows_of_page(
    db: sa.Connection,
    wanted: sa.Select[Any],
    number: sa.ColumnElement[int],
    id: sa.ColumnElement[str],
    query: PageQuery,
) -> tuple[list[Any], bool]:
    """Rows of `wanted` in the order of `number`, after the one with the id `query.after`, and whether more exist."""
    descending = query.order == "desc"
    if query.after is not None:
        place = db.execute(wanted.with_only_columns(number).where(id == query.after)).scalar()
        if place is None:
            raise InvalidRequest(
                f"There is no object {query.after!r} in this list: set 'after' to the id of the last object of a page.",
                param="after",
            )
        wanted = wanted.where(number < place if descending else number > place)
    rows = list(db.execute(wanted.order_by(number.desc() if descending else number).limit(query.limit + 1)))
    return rows[: query.limit], len(rows) > query.limit
