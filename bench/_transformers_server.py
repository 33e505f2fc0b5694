"""transformers behind a minimal OpenAI server: `/v1/completions` of token ids, greedy, streamed or whole.

Started by serving.py. Requests that wait are generated together, as many as fit a batch, by `generate` with its dynamic
cache and SDPA: when a batch has ended, the next one begins. A batch waits a moment for who else is coming. All prompts
of a batch are of one length.
"""

import argparse
import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers.generation.streamers import BaseStreamer

MOMENT = 0.05
"""Seconds without a new request after which a batch begins with those that are there."""


@dataclass
class Asked:
    prompt: list[int]
    count: int
    loop: asyncio.AbstractEventLoop
    tokens: asyncio.Queue[int] = field(default_factory=asyncio.Queue)


class Streamer(BaseStreamer):  # type: ignore[misc]
    """Each step's tokens, to those who still want one."""

    def __init__(self, batch: list[Asked]) -> None:
        self.batch = batch
        self.given = -1  # the prompt comes first

    def put(self, value: torch.Tensor) -> None:
        self.given += 1
        if self.given == 0:
            return
        for asked, token in zip(self.batch, value.tolist(), strict=True):
            if self.given <= asked.count:
                asked.loop.call_soon_threadsafe(asked.tokens.put_nowait, token)

    def end(self) -> None:
        pass


class Generator(threading.Thread):
    def __init__(self, folder: str, dtype: str, batch: int) -> None:
        super().__init__(daemon=True)
        self.waiting: queue.Queue[Asked] = queue.Queue()
        self.size = batch
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        self.model.generation_config.eos_token_id = None  # answers go on to their full length

    def run(self) -> None:
        while True:
            batch = self._next()
            ids = torch.tensor([asked.prompt for asked in batch])
            longest = max(asked.count for asked in batch)
            with torch.inference_mode():
                self.model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=longest,
                    pad_token_id=0,
                    streamer=Streamer(batch),
                )

    def _next(self) -> list[Asked]:
        batch = [self.waiting.get()]
        while len(batch) < self.size:
            try:
                batch.append(self.waiting.get(timeout=MOMENT))
            except queue.Empty:
                break
        return batch


def application(generator: Generator, tokenizer: Any) -> Starlette:
    async def complete(request: Request) -> Response:
        body = await request.json()
        asked = Asked(body["prompt"], body["max_tokens"], asyncio.get_running_loop())
        generator.waiting.put(asked)
        if body.get("stream"):
            return StreamingResponse(events(asked), media_type="text/event-stream")
        tokens = [await asked.tokens.get() for _ in range(asked.count)]
        choice = {
            "index": 0,
            "text": tokenizer.decode(tokens),
            "token_ids": tokens,
            "finish_reason": "length",
        }
        return JSONResponse({"object": "text_completion", "choices": [choice], "usage": usage(asked)})

    async def events(asked: Asked) -> AsyncIterator[str]:
        for i in range(asked.count):
            text = tokenizer.decode([await asked.tokens.get()])
            reason = "length" if i == asked.count - 1 else None
            yield event(choices=[{"index": 0, "text": text, "finish_reason": reason}])
        yield event(choices=[], usage=usage(asked))
        yield "data: [DONE]\n\n"

    return Starlette(routes=[Route("/v1/completions", complete, methods=["POST"])])


def event(**body: Any) -> str:
    return f"data: {json.dumps(body)}\n\n"


def usage(asked: Asked) -> dict[str, int]:
    return {"prompt_tokens": len(asked.prompt), "completion_tokens": asked.count}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    transformers.logging.set_verbosity_error()
    generator = Generator(given.folder, given.dtype, given.batch)
    generator.start()
    app = application(generator, transformers.AutoTokenizer.from_pretrained(given.folder))
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="error")


if __name__ == "__main__":
    main()
