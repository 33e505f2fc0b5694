"""Conversion of bad words and prompt truncation to tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rondo.base.errors import InvalidRequest
from rondo.client.types import SamplingParams
from rondo.engine.entrypoints.output import TextSource


def with_bad_words(params: SamplingParams, tokenizer: TextSource | None) -> SamplingParams:
    """Adds the token sequences of `bad_words`, at the beginning of a text and after a space."""
    if not params.bad_words or params.bad_word_ids:
        return params
    if tokenizer is None:
        raise InvalidRequest("bad_words need an engine with a tokenizer.", param="bad_words")
    forms = [form for word in params.bad_words for form in (word.lstrip(), " " + word.lstrip())]
    ids = {tuple(tokenizer.encode(form, add_special=False)) for form in forms if form}
    return replace(params, bad_word_ids=tuple(sorted(each for each in ids if each)))


def truncated(prompt: Sequence[int], params: SamplingParams, max_model_len: int) -> Sequence[int]:
    """The prompt's last `truncate_prompt_tokens` tokens; with -1, as many as leave room for the answer."""
    most = params.truncate_prompt_tokens
    if most is None:
        return prompt
    if most == -1:
        most = max(max_model_len - (params.max_tokens or 1), 1)
    return prompt[-most:]
