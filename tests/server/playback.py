"""An engine that says what it is told, token by token, in place of a model that does."""

from collections.abc import AsyncGenerator

from rondo.client.types import GenerateRequest, TokenChunk
from rondo.text.tokenizer import Tokenizer


class Playback:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.answers = [""]
        self.reason = "stop"
        self.requests: list[GenerateRequest] = []

    def says(self, *answers: str, reason: str = "stop") -> None:
        """Sample i of a request gets answer i, modulo their number."""
        self.answers, self.reason = list(answers), reason

    @property
    def prompt(self) -> str:
        return self.tokenizer.decode(self.requests[-1].prompt_ids, skip_special=False)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        self.requests.append(request)
        sampling = request.sampling
        for index in range(sampling.n):
            ids = self.tokenizer.encode(self.answers[index % len(self.answers)], add_special=False)
            detokenizer = self.tokenizer.detokenizer(
                sampling.skip_special_tokens, keep=sampling.keep_special_tokens
            )
            for at, token in enumerate(ids, 1):
                last = at == len(ids)
                yield TokenChunk(
                    request.id,
                    index,
                    [token],
                    [0],
                    text=detokenizer.push([token]) + (detokenizer.flush() if last else ""),
                    finish_reason=self.reason if last else None,
                    prompt_tokens=len(request.prompt_ids),
                )
