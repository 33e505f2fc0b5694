"""An engine for `/v1/responses` that stores nothing."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from gateway.stub import Stub
from rondo.base.ids import new_id
from rondo.web.http import event_of


def response_to(body: dict[str, Any]) -> dict[str, Any]:
    """An engine's response, whose text has the number of items of the input and the last one."""
    given = body["input"]
    items = [{"content": given}] if isinstance(given, str) else given
    last = items[-1].get("content")
    said = last if isinstance(last, str) else "".join(part["text"] for part in last or [])
    text = f"{len(items)}: {said}"
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    message = {
        "type": "message",
        "id": new_id("msg"),
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": body["model"],
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "store": False,
        "previous_response_id": None,
        "metadata": body.get("metadata") or {},
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
    }


@dataclass
class Engine(Stub):
    """Refuses the fields that need a store, as an engine does."""

    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def _answer(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        wrong = [
            name for name in ("store", "previous_response_id", "conversation", "background") if name in body
        ]
        if wrong or self.mode == "error":
            return JSONResponse({"error": {"message": f"no {wrong}"}}, status_code=400)
        if request.url.path.endswith("input_tokens"):
            return JSONResponse({"object": "response.input_tokens", "input_tokens": len(body["input"])})
        if body.get("stream") and self.mode == "crlf":
            return StreamingResponse(self._crlf(body), media_type="text/event-stream")
        if self.mode == "cut":
            return StreamingResponse(self._cut(), media_type="application/json")
        if body.get("stream"):
            return StreamingResponse(self._stream(body), media_type="text/event-stream")
        return JSONResponse(response_to(body))

    async def _crlf(self, body: dict[str, Any]) -> Any:
        async for event in self._stream(body):
            yield event.replace(b"\n", b"\r\n")
            if b"response.created" in event:
                self.gone.clear()
                await asyncio.to_thread(self.gone.wait, 60)

    async def _cut(self) -> Any:
        yield b'{"id": "resp'
        await asyncio.sleep(0.1)
        raise ConnectionAbortedError("of the test")

    async def _stream(self, body: dict[str, Any]) -> Any:
        response = response_to(body)
        begun = response | {"status": "in_progress", "output": [], "usage": None}
        (message,) = response["output"]
        where = {"output_index": 0, "item_id": message["id"]}
        text = message["content"][0]["text"]
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
            {"type": "response.output_item.added", "output_index": 0, "item": message | {"content": []}},
            {
                "type": "response.content_part.added",
                **where,
                "content_index": 0,
                "part": {"type": "output_text", "text": "", "annotations": []},
            },
            *(
                {
                    "type": "response.output_text.delta",
                    **where,
                    "content_index": 0,
                    "delta": letter,
                    "logprobs": [],
                }
                for letter in text
            ),
            {"type": "response.output_text.done", **where, "content_index": 0, "text": text, "logprobs": []},
            {
                "type": "response.content_part.done",
                **where,
                "content_index": 0,
                "part": message["content"][0],
            },
            {"type": "response.output_item.done", "output_index": 0, "item": message},
            {"type": "response.completed", "response": response},
        ]
        for number, event in enumerate(events):
            data = event_of(event | {"sequence_number": number}, event["type"])
            yield data[:20]
            await asyncio.sleep(0)
            yield data[20:]
