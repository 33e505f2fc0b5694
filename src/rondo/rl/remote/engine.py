"""A remote engine with the interface of a local one: token IDs in, chunks with weight versions out.

Text is decoded locally by the policy's tokenizer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import cast

from rondo.base.errors import ConfigError, Conflict, InvalidRequest, RondoError, Unavailable
from rondo.client.pool import PooledEngine
from rondo.client.types import FinishReason, GenerateRequest, TokenChunk
from rondo.engine.entrypoints.output import SampleReader, TextSource
from rondo.engine.schedule.intake import InputProcessor
from rondo.engine.schedule.request import Request
from rondo.engine.vllm.answers import FINISHED
from rondo.engine.vllm.backend import OutputDelta, VllmRequest
from rondo.rl.remote.servers import FIELD, ServerApi
from rondo.text.tokenizer import Tokenizer

PROBE = "The policy's tokens, 1 2 3:\n\tdéjà vu — 東京 🙂"
"""A text for which different tokenizers rarely have the same tokens."""


class RemoteEngine(PooledEngine):
    def __init__(self, server: ServerApi, intake: InputProcessor, tokenizer: Tokenizer) -> None:
        super().__init__(server.client.base_url)
        self.server = server
        self.version = 0
        """Version of the last pushed weights."""
        self.push_lock = asyncio.Lock()
        """Lock of a weight push."""
        self._intake = intake
        self._tokenizer = tokenizer

    async def check(self) -> None:
        """Check that the server supports weight updates and has the policy's tokenizer."""
        await self.server.check()
        self.version = await self.server.version()
        theirs = await self.server.client.tokenize(PROBE, self.server.model, add_special_tokens=False)
        if theirs["tokens"] != self._tokenizer.encode(PROBE, add_special=False):
            raise ConfigError(
                f"the engine at {self.url} has another tokenizer than the policy: start it with the policy's model.",
                param=FIELD,
            )

    async def push(self, folder: Path, version: int, waits: bool) -> None:
        try:
            await self.server.push(folder, version, waits)
        except (Unavailable, Conflict):
            raise
        except RondoError as error:
            raise ConfigError(
                f"the engine at {self.url} cannot take the policy's weights: {error.message} Start it with the "
                f"policy's model, and where {folder} can be read (rl.engine.folder).",
                param=FIELD,
            ) from error

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        prompt = list(request.prompt_ids)
        if request.sampling.prompt_logprobs is not None:
            raise InvalidRequest(
                "prompt_logprobs is not supported with a remote engine.", param="prompt_logprobs"
            )
        self._intake.check(request, prompt)
        samples = self._intake.samples(request, prompt, None, time.monotonic())
        readers = [SampleReader(sample, cast(TextSource, self._tokenizer)) for sample in samples]
        query = VllmRequest(request, samples[0], str(self.version), None)
        async with aclosing(self.server.generate(query)) as pieces:
            async for piece in pieces:
                # A greedy request is sent as one sample, which is the result of all samples.
                for reader in readers if query.samples < len(readers) else [readers[piece.index]]:
                    _append(reader.request, piece, self.version)
                    chunk = reader.read(request.read_at_end)
                    if chunk is not None:
                        yield chunk
                if all(reader.done for reader in readers):
                    return

    async def close(self) -> None:
        await self.server.client.close()


def _append(sample: Request, piece: OutputDelta, version: int) -> None:
    """Append a chunk to its sample. `version` is the version of the tokens if the server does not report versions."""
    if sample.finish_reason is not None:
        return
    sample.first_cached = piece.cached or 0
    sample.tokens.extend(piece.tokens)
    sample.logprobs.extend(piece.logprobs or ())
    sample.top_logprobs.extend(piece.top or ())
    own = piece.versions is not None and len(piece.versions) == len(piece.tokens)
    sample.weight_versions.extend(piece.versions if own and piece.versions else [version] * len(piece.tokens))
    if piece.versions is not None and len(piece.versions) == len(sample.weight_versions):
        sample.weight_versions[:] = piece.versions  # vLLM reports the versions of a whole sample at its end
    if piece.finish_reason is not None:
        if piece.stop_reason in sample.sampling.stop_token_ids:
            sample.stop_reason = piece.stop_reason
        sample.finish_reason = (
            cast(FinishReason, piece.finish_reason) if piece.finish_reason in FINISHED else "abort"
        )
