"""Logs for people (one line each) and for machines (JSON, one object a line), on standard error.

    log = get_logger(__name__)
    log.info("model loaded", extra={"model": "demo", "seconds": 1.2})

Names bound with `bind(request_id=...)` are on every line logged inside, through awaits and tasks.
"""

import contextlib
import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Literal, TextIO

from pydantic import Field

from rondo.base.settings.config import Section

_bound: ContextVar[Mapping[str, object] | None] = ContextVar("rondo_log_context", default=None)
_NEEDS_QUOTES = re.compile(r'[\s"=]')
_RECORD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class LogConfig(Section):
    format: Literal["human", "json"] = Field(
        "human", description="one line for people, or one JSON object a line"
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="the least severe level shown"
    )


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(name if name.partition(".")[0] == "rondo" else f"rondo.{name}")


def setup(
    format: Literal["human", "json"] = "human", level: str = "info", stream: TextIO | None = None
) -> logging.Handler:
    """Sends logs to `stream` (standard error), Rondo's own from `level` on and the warnings of libraries (uvicorn's,
    asyncio's) in the same form; calling it again replaces the earlier choice."""
    ours = logging.getLogger("rondo")
    handler = _Handler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else HumanFormatter())
    for logger in (ours, logging.getLogger()):
        for old in [handler for handler in logger.handlers if isinstance(handler, _Handler)]:
            logger.removeHandler(old)
        logger.addHandler(handler)
    ours.setLevel(level.upper())
    ours.propagate = False
    return handler


@contextlib.contextmanager
def bind(**values: object) -> Iterator[None]:
    """Adds `values` to every line logged inside the block."""
    token = _bound.set({**(_bound.get() or {}), **values})
    try:
        yield
    finally:
        _bound.reset(token)


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Omits lines below warnings of one logger during the block."""
    logger = get_logger(name)
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


class HumanFormatter(logging.Formatter):
    """`12:34:56 INFO    rondo.engine  model loaded  model=demo seconds=1.2`"""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        message = _one_line(record.getMessage())
        pairs = " ".join(f"{key}={_shown(value)}" for key, value in _values(record).items())
        line = f"{clock} {record.levelname:<7} {record.name}  {message}" + (f"  {pairs}" if pairs else "")
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """`{"time": ..., "level": ..., "logger": ..., "message": ..., <values>}`, times in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _values(record).items():
            entry.setdefault(key, value)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class _Handler(logging.StreamHandler[TextIO]):
    """Looks standard error up for each line, so that redirecting it later still works."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream or sys.stderr)
        self.fixed = stream

    def emit(self, record: logging.LogRecord) -> None:
        if self.fixed is None:
            self.stream = sys.stderr
        super().emit(record)


def _values(record: logging.LogRecord) -> dict[str, object]:
    extra = {key: value for key, value in record.__dict__.items() if key not in _RECORD_FIELDS}
    return {**(_bound.get() or {}), **extra}


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or _NEEDS_QUOTES.search(text) else text
