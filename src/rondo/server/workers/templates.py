"""Chat templates within limits of time and output. A template is a program in the model's folder.

A template whose work can be metered is rendered in the server's process, within a small budget; any other, and one that
exceeds the budget, in a child process that is killed when its time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rondo.base.errors import RondoError
from rondo.server.workers.worker import OutOfMemory, OutOfTime, Workers
from rondo.text.conversation.chat import is_bounded
from rondo.text.metered import TooMuchWork, metered

STEPS = 20_000
"""Runs of loop bodies and macros in the server's process."""
SECONDS_AT_ONCE, CHARACTERS_AT_ONCE = 0.05, 1 << 18
"""The budget of a short conversation, which is rendered by the event loop's thread."""
SECONDS_BESIDE = 1.0
MEMORY = 1 << 30


class TemplateLimit(RondoError):
    """The model's chat template exceeds a limit with these messages; clients must not retry them unchanged."""

    status = 422
    kind = "invalid_request_error"


class Templates:
    """`seconds` bounds the time of a render, `characters` its output."""

    def __init__(self, seconds: float, characters: int) -> None:
        self._seconds = seconds
        self._characters = characters
        self._workers = Workers(memory=MEMORY)

    def render_here(self, rendering: partial[str], at_once: bool) -> str | None:
        """The prompt; None if this process is not the place to render it."""
        if not is_bounded(rendering.args[0]):
            return None
        seconds = SECONDS_AT_ONCE if at_once else SECONDS_BESIDE
        characters = min(CHARACTERS_AT_ONCE, self._characters) if at_once else self._characters
        try:
            with metered(characters, STEPS, min(seconds, self._seconds)):
                return rendering()
        except TooMuchWork:
            return None

    async def render_apart(self, rendering: partial[str]) -> str:
        where = rendering.keywords["where"]
        try:
            text: str = await self._workers.run(
                render_bounded, rendering, self._characters, seconds=self._seconds
            )
        except OutOfTime:
            took = f"took longer than {self._seconds:g} s (server.template_seconds)"
            raise _exceeded(where, took) from None
        except OutOfMemory:
            raise _exceeded(where, f"needed more than {MEMORY >> 20} MiB of memory") from None
        except TemplateLimit:
            wrote = f"wrote more than {self._characters} characters (server.template_characters)"
            raise _exceeded(where, wrote) from None
        return text


def _exceeded(where: str, what: str) -> TemplateLimit:
    return TemplateLimit(
        f"{where} {what} for these messages. Shorten them, give the server another template "
        "(server.chat_template), or raise the limit.",
        param="messages",
        code="chat_template_limit",
    )


def render_bounded(_: bytes, rendering: Callable[[], str], characters: int) -> str:
    """In a child process: only the output is measured, since time ends the process."""
    try:
        with metered(characters):
            text = rendering()
    except TooMuchWork:
        raise TemplateLimit("too long.") from None
    if len(text) > characters:
        raise TemplateLimit("too long.")
    return text
