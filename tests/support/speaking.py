"""An engine that says what a function makes of its prompt, in place of a model that does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from rondo.client.types import GenerateRequest, TokenChunk
from rondo.text.tokenizer import Tokenizer


class Speaking:
    """`answer` is given the prompt's text. Each token has the log-probability -0.25 and `version`."""

    def __init__(self, tokenizer: Tokenizer, answer: Callable[[str], str]) -> None:
        self.tokenizer, self.answer = tokenizer, answer
        self.version = 0
        self.requests: list[GenerateRequest] = []

    def prompt(self, at: int = -1) -> str:
        return self.tokenizer.decode(list(self.requests[at].prompt_ids), skip_special=False)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        self.requests.append(request)
        sampling = request.sampling
        for index in range(sampling.n):
            ids = self.tokenizer.encode(self.answer(self.prompt()), add_special=False)
            cut = sampling.max_tokens is not None and len(ids) > sampling.max_tokens
            ids = ids[: sampling.max_tokens]
            text = self.tokenizer.detokenizer(sampling.skip_special_tokens, keep=sampling.keep_special_tokens)
            for at, id in enumerate(ids, 1):
                last = at == len(ids)
                yield TokenChunk(
                    request.id,
                    index,
                    [id],
                    [self.version],
                    logprobs=None if sampling.logprobs is None else [-0.25],
                    text=text.push([id]) + (text.flush() if last else ""),
                    finish_reason=("length" if cut else "stop") if last else None,
                    prompt_tokens=len(request.prompt_ids),
                )
