"""From the engine's chunks to the parts of OpenAI's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rondo.base.errors import RondoError
from rondo.client.types import PromptLogprobs, TokenChunk
from rondo.server.answers.thoughts import ThoughtCount
from rondo.text.tokenizer import Tokenizer


class Tokens:
    """How tokens are shown in log-probabilities: as text and as bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, list[int]]] = {}

    def named(self, as_ids: bool) -> Tokens:
        """These, or the same with ids for names."""
        return _ById(self._tokenizer) if as_ids else self

    def show_unique(self, token: int) -> str:
        """Plain completions key alternatives by text, so parts of characters are shown as `bytes:\\xe2`."""
        text, data = self.show(token)
        return text if "\ufffd" not in text else "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def length(self, token: int) -> int:
        """Characters that begin in this token."""
        return sum(byte & 0xC0 != 0x80 for byte in self.show(token)[1])

    def show(self, token: int) -> tuple[str, list[int]]:
        shown = self._known.get(token)
        if shown is None:
            try:
                data = self._tokenizer.token_bytes(token)
            except RondoError:
                # A model may have more rows in its embedding than the tokenizer has tokens.
                data = b""
            shown = self._known[token] = (data.decode("utf-8", "replace"), list(data))
        return shown


class _ById(Tokens):
    """Tokens that a client wants to send back, shown so that none looks like another."""

    def show_unique(self, token: int) -> str:
        return f"token_id:{token}"

    def show(self, token: int) -> tuple[str, list[int]]:
        return f"token_id:{token}", super().show(token)[1]


def chat_logprobs(tokens: Tokens, chunk: TokenChunk) -> dict[str, Any] | None:
    if chunk.logprobs is None:
        return None
    content = []
    for i, (token, logprob) in enumerate(zip(chunk.token_ids, chunk.logprobs, strict=True)):
        top = chunk.top_logprobs[i] if chunk.top_logprobs is not None else []
        content.append(
            _entry(tokens, token, logprob) | {"top_logprobs": [_entry(tokens, *pair) for pair in top]}
        )
    return {"content": content, "refusal": None}


def _entry(tokens: Tokens, token: int, logprob: float) -> dict[str, Any]:
    text, data = tokens.show(token)
    return {"token": text, "logprob": logprob, "bytes": data}


def completion_logprobs(tokens: Tokens, chunk: TokenChunk, offset: int) -> tuple[dict[str, Any] | None, int]:
    """`offset` is where in the answer's text the chunk begins; also returned: where the next one does."""
    if chunk.logprobs is None:
        return None, offset
    texts, offsets = [], []
    for token in chunk.token_ids:
        texts.append(tokens.show_unique(token))
        offsets.append(offset)
        offset += tokens.length(token)
    likeliest = chunk.top_logprobs if chunk.top_logprobs is not None else [[]] * len(texts)
    top = [
        {tokens.show_unique(other): value for other, value in [*alternatives, (token, logprob)]}
        for token, logprob, alternatives in zip(chunk.token_ids, chunk.logprobs, likeliest, strict=True)
    ]
    body = {"tokens": texts, "token_logprobs": chunk.logprobs, "top_logprobs": top, "text_offset": offsets}
    return body, offset


def shown_prompt(tokens: Tokens, scores: PromptLogprobs, count: int) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: for each token its own and the `count` likeliest, by id."""
    return [
        None
        if entry is None
        else {
            str(token): {"logprob": logprob, "rank": rank, "decoded_token": tokens.show(token)[0]}
            for token, logprob, rank in [*entry[1 : count + 1], entry[0]]
        }
        for entry in scores
    ]


def echo_logprobs(
    tokens: Tokens, prompt: Sequence[int], scores: PromptLogprobs, count: int
) -> tuple[dict[str, Any], int]:
    """The prompt's part of an echoed answer's `logprobs`; also returned: where its text ends."""
    offsets, offset = [], 0
    for token in prompt:
        offsets.append(offset)
        offset += tokens.length(token)
    top = [
        None if entry is None else {tokens.show_unique(t): v for t, v, _ in [*entry[1 : count + 1], entry[0]]}
        for entry in scores
    ]
    body = {
        "tokens": [tokens.show_unique(token) for token in prompt],
        "token_logprobs": [None if entry is None else entry[0][1] for entry in scores],
        "top_logprobs": top,
        "text_offset": offsets,
    }
    return body, offset


class UsageCount:
    """Prompt and output tokens of one HTTP request, over its prompts and samples; with `new_thoughts` also its
    reasoning tokens, for the samples of one prompt."""

    def __init__(self, new_thoughts: Callable[[], ThoughtCount] | None = None) -> None:
        self._new_thoughts = new_thoughts
        self._thoughts: dict[int, ThoughtCount] = {}
        self.prompts: dict[str, tuple[int, int]] = {}
        self.completion = 0

    def count(self, chunk: TokenChunk) -> None:
        cached = max(
            self.prompts.get(chunk.request_id, (0, 0))[1], chunk.cached_tokens if chunk.index == 0 else 0
        )
        self.prompts[chunk.request_id] = (chunk.prompt_tokens, cached)
        self.completion += len(chunk.token_ids)
        if self._new_thoughts is not None:
            if chunk.index not in self._thoughts:
                self._thoughts[chunk.index] = self._new_thoughts()
            self._thoughts[chunk.index].add(chunk.token_ids)

    def body(self) -> dict[str, Any]:
        prompt = sum(tokens for tokens, _ in self.prompts.values())
        cached = sum(cached for _, cached in self.prompts.values())
        body: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion,
            "total_tokens": prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if self._new_thoughts is not None:
            thoughts = sum(thought.tokens for thought in self._thoughts.values())
            body["completion_tokens_details"] = {"reasoning_tokens": thoughts}
        return body


def join(chunks: Iterable[TokenChunk]) -> list[TokenChunk]:
    """One chunk per sample, in the order of the samples."""
    whole: dict[int, TokenChunk] = {}
    for chunk in chunks:
        if chunk.index in whole:
            whole[chunk.index].extend(chunk)
        else:
            whole[chunk.index] = chunk
    return [whole[index] for index in sorted(whole)]
