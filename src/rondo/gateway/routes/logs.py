"""Logs of the parts that `rondo up` runs, by byte offset."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from rondo.gateway.routes.security import AdminKey
from rondo.supervisor.logs import parts_with_logs, read_log

router = APIRouter(tags=["health"])


class LogList(BaseModel):
    object: str = "list"
    data: list[str]


class LogText(BaseModel):
    part: str
    file: str
    """Changes when the log is rotated."""
    start: int
    end: int
    """Offset for the next request, to follow the log."""
    size: int
    text: str


@router.get("/v1/health/logs")
def list_logs(key: AdminKey) -> LogList:
    """Parts that have a log."""
    return LogList(data=parts_with_logs())


@router.get("/v1/health/logs/{part}")
def read_part(
    part: str,
    key: AdminKey,
    offset: Annotated[
        int | None, Query(ge=0, description="first byte; without it, the end of the log")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1 << 20, description="most bytes")] = 64 << 10,
    file: Annotated[str | None, Query(max_length=100, description="`file` of an earlier answer")] = None,
) -> LogText:
    """Whole lines of a part's log. To follow it, set `offset` to `end` and `file` to that of the earlier answer;
    to scroll back, set an `offset` below `start`."""
    piece = read_log(part, offset, limit, file)
    text = piece.data.decode(errors="replace")
    return LogText(part=part, file=piece.file, start=piece.start, end=piece.end, size=piece.size, text=text)
