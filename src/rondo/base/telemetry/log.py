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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Literal, TextIO

from pydantic import Field

from rondo.base.settings.config import Section
from rondo.base.telemetry.activity import undrawn
from rondo.base.telemetry.colors import has_colors, paint

_bound: ContextVar[Mapping[str, object] | None] = ContextVar("rondo_log_context", default=None)
_to_json = json.JSONEncoder(ensure_ascii=False, default=str).encode
_NEEDS_QUOTES = re.compile(r'[\s"=\x00-\x1f\x7f-\x9f]')
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that move the cursor or color a terminal, and line separators, except the line feed."""
_RECORD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


Format = Literal["auto", "human", "json"]
GATHER_SECONDS = 0.1
MOST_GATHERED = 256
LEVEL_STYLES = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


class LogConfig(Section):
    format: Format = Field(
        "auto",
        description="human: one line for people; json: one JSON object a line; auto: human, with requests as JSON "
        "unless standard error is a terminal",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="the least severe level shown"
    )


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(name if name.partition(".")[0] == "rondo" else f"rondo.{name}")


def setup(format: Format = "auto", level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Sends logs to `stream` (standard error), Rondo's own from `level` on and the warnings of libraries (uvicorn's,
    asyncio's) in the same form; calling it again replaces the earlier choice."""
    ours = logging.getLogger("rondo")
    handler = _Handler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else _Readable(handler, format == "auto"))
    for logger in (ours, logging.getLogger()):
        for old in [handler for handler in logger.handlers if isinstance(handler, _Handler)]:
            with contextlib.suppress(OSError, ValueError):  # standard error may have been closed
                old.flush()
            logger.removeHandler(old)
        logger.addHandler(handler)
    ours.setLevel(level.upper())
    ours.propagate = False
    return handler


class _Binding:
    """A class, because a generator would cost each request twice the time."""

    __slots__ = ("_token", "_values")

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def __enter__(self) -> None:
        self._token = _bound.set({**(_bound.get() or {}), **self._values})

    def __exit__(self, *error: object) -> None:
        _bound.reset(self._token)


def bind(**values: object) -> _Binding:
    """Adds `values` to every line logged inside the block."""
    return _Binding(values)


class ShortLine:
    """A message with a short form for people, which replaces the fields: pieces of text, each with its style or "".

    `later` calls a function after some seconds, such as an event loop's `call_later`: the lines of that time are
    written together, because a system call per request costs as much as its line."""

    def __init__(
        self,
        text: str,
        short: Callable[[], Sequence[tuple[str, str]]],
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._text = text
        self.short, self.later = short, later

    def __str__(self) -> str:
        return self._text


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
    """`12:34:56 INFO    rondo.engine  model loaded  model=demo seconds=1.2`; `brief` lines of level INFO lack the level
    and the logger, to fit a terminal."""

    def __init__(self, colors: bool = False, brief: bool = False) -> None:
        super().__init__()
        self.colors = colors
        self.brief = brief

    def format(self, record: logging.LogRecord) -> str:
        clock = self._paint(time.strftime("%H:%M:%S", time.localtime(record.created)), "dim")
        if isinstance(record.msg, ShortLine):
            return " ".join([clock, *(self._paint(*piece) for piece in record.msg.short())])
        message = _one_line(record.getMessage())
        pairs = " ".join(f"{key}={_shown(value)}" for key, value in _values(record).items())
        level = self._paint(f"{record.levelname:<7}", LEVEL_STYLES.get(record.levelname, ""))
        brief = self.brief and record.levelno == logging.INFO
        origin = "" if brief else f"{level} {record.name}  "
        line = f"{clock} {origin}{message}" + (f"  {pairs}" if pairs else "")
        if record.exc_info:
            line += "\n" + _escaped(self.formatException(record.exc_info))
        return line

    def _paint(self, text: str, style: str) -> str:
        return paint(text, style) if self.colors and style else text


class JsonFormatter(logging.Formatter):
    """`{"time": ..., "level": ..., "logger": ..., "message": ..., <values>}`, times in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = _stamp(int(record.created))
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
        return _escaped(_to_json(entry))


@lru_cache(16)
def _stamp(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


class _Handler(logging.StreamHandler[TextIO]):
    """Looks standard error up for each line, so that redirecting it later still works."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream or sys.stderr)
        self.fixed = stream
        self._gathered: list[str] = []
        self._due = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if self.fixed is None:
            self.stream = sys.stderr
        if isinstance(record.msg, ShortLine) and record.msg.later is not None:
            self._gather(record, record.msg.later)
            return
        with undrawn():
            self._write_gathered()
            super().emit(record)

    def flush(self) -> None:
        with self.lock or nullcontext():
            if self._gathered:
                with undrawn():
                    self._write_gathered()
            super().flush()

    def _gather(
        self, record: logging.LogRecord, later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        try:
            self._gathered.append(self.format(record) + self.terminator)
        except Exception:
            self.handleError(record)
            return
        if len(self._gathered) == 1:
            self._due = record.created + GATHER_SECONDS
            later(GATHER_SECONDS, self.flush)
        elif record.created > self._due or len(self._gathered) >= MOST_GATHERED:
            self.flush()  # also if the event loop of the first line has ended

    def _write_gathered(self) -> None:
        if not self._gathered:
            return
        text, self._gathered = "".join(self._gathered), []
        with contextlib.suppress(OSError, ValueError):  # standard error may be closed
            self.stream.write(text)


class _Readable(logging.Formatter):
    """Lines for people, coloured on a terminal; with `auto`, requests are JSON if the output is not a terminal."""

    def __init__(self, handler: _Handler, auto: bool) -> None:
        super().__init__()
        self._handler = handler
        self._auto = auto
        self._human, self._json = HumanFormatter(), JsonFormatter()

    def format(self, record: logging.LogRecord) -> str:
        stream = self._handler.stream
        if self._auto and isinstance(record.msg, ShortLine) and not stream.isatty():
            return self._json.format(record)
        self._human.colors, self._human.brief = has_colors(stream), stream.isatty()
        return self._human.format(record)


def _values(record: logging.LogRecord) -> dict[str, object]:
    extra = {key: value for key, value in record.__dict__.items() if key not in _RECORD_FIELDS}
    return {**(_bound.get() or {}), **extra}


def _one_line(text: str) -> str:
    return _escaped(text).replace("\n", "\\n")


def _escaped(text: str) -> str:
    """Text of a client in a log cannot forge lines or control a terminal."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return _escaped(json.dumps(text, ensure_ascii=False)) if not text or _NEEDS_QUOTES.search(text) else text
