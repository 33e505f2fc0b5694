"""Incremental detokenization of a sample: whole characters, stop strings, and no text that may still be part of one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from rondo.client.types import FinishReason, SamplingParams, TokenChunk
from rondo.engine.schedule.request import Request
from rondo.text.detokenize import Detokenizer


class TextSource(Protocol):
    """The part of a tokenizer that the engine uses."""

    def encode(self, text: str, add_special: bool = True) -> list[int]: ...
    def decode(self, ids: list[int], skip_special: bool = True) -> str: ...
    def detokenizer(self, skip_special: bool = True, *, keep: Collection[int] = ()) -> Detokenizer: ...


class StopMatcher:
    """Emits text as soon as it cannot be part of a stop string any more."""

    def __init__(self, stop: tuple[str, ...], include: bool) -> None:
        self.stop = stop
        self.include = include
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Returns the text that is certain and the stop string that ended it."""
        text = self._held + text
        hits = [(text.find(stop), -len(stop), stop) for stop in self.stop if stop in text]
        if hits:
            at, _, stop = min(hits)
            self._held = ""
            return text[: at + len(stop)] if self.include else text[:at], stop
        keep = max((_overlap(text, stop) for stop in self.stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a prefix of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class SampleReader:
    """Reads one sample in chunks, each from the end of the last one. Reading needs no lock, because the engine only
    appends to a request and appends a token's version last. A slow reader receives larger chunks."""

    def __init__(self, request: Request, tokenizer: TextSource | None) -> None:
        params = request.sampling
        self.request = request
        self.done = False
        self._read = 0
        self._detokenizer = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = tokenizer.detokenizer(
                params.skip_special_tokens, keep=params.keep_special_tokens
            )
        self._matcher = StopMatcher(params.stop, params.include_stop_str_in_output) if params.stop else None

    def read(self, at_end: bool = False) -> TokenChunk | None:
        """The new chunk; None if there is no new token, or if `at_end` is set and the sample has not ended. The chunk
        with a finish reason is the last one."""
        request = self.request
        reason = request.finish_reason
        end = len(request.weight_versions)
        if self.done or (reason is None and (at_end or end == self._read)):
            return None
        stop_reason: int | str | None = request.stop_reason
        text = ""
        if self._detokenizer is not None:
            text, stop, end = self._text(end, reason, request.sampling)
            if stop is not None:
                reason, stop_reason = "stop", stop
        chunk = self._chunk(end, text)
        chunk.finish_reason, chunk.stop_reason = reason, stop_reason
        self._read = end
        self.done = reason is not None
        return chunk

    def _text(
        self, end: int, reason: FinishReason | None, params: SamplingParams
    ) -> tuple[str, str | None, int]:
        """Returns the text of the tokens up to `end`, the stop string in it, and the end of the tokens that count."""
        assert self._detokenizer is not None
        base = self.request.prompt_length
        tokens = self.request.tokens
        # The token that ended the sample is part of its text only with include_stop_str_in_output.
        stopped = reason == "stop" and tokens[base + end - 1] in self.request.stop_ids
        last = end - 1 if stopped and not params.include_stop_str_in_output else end
        if self._matcher is None:
            text = self._detokenizer.push(tokens[base + self._read : base + last])
            return text + (self._detokenizer.flush() if reason else ""), None, end
        parts = []
        for i in range(self._read, last):
            text, stop = self._matcher.push(self._detokenizer.push([tokens[base + i]]))
            parts.append(text)
            if stop is not None:
                return "".join(parts), stop, i + 1
        if reason:
            text, stop = self._matcher.push(self._detokenizer.flush())
            parts.append(text)
            if stop is None:
                parts.append(self._matcher.flush())
            return "".join(parts), stop, end
        return "".join(parts), None, end

    def _chunk(self, end: int, text: str) -> TokenChunk:
        request, start = self.request, self._read
        base = request.prompt_length
        params = request.sampling
        return TokenChunk(
            request_id=request.id,
            index=request.index,
            token_ids=request.tokens[base + start : base + end],
            weight_versions=request.weight_versions[start:end],
            logprobs=None if params.logprobs is None else request.logprobs[start:end],
            top_logprobs=request.top_logprobs[start:end] if params.logprobs else None,
            text=text,
            prompt_tokens=base,
            cached_tokens=max(request.first_cached, 0),
            prompt_logprobs=None if start or request.scores is None else request.scores.read(),
            vector=_vector(request),
        )


def _vector(request: Request) -> list[float] | None:
    """The complete vector or None: an aborted request may have a part of it."""
    whole = request.vector is not None and request.finish_reason == "stop"
    return request.vector.tolist() if whole and request.vector is not None else None
