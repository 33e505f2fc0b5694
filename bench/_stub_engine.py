"""An engine without a model, in a process of its own: answers each request at once. Prints its URL, and ends when its
standard input does."""

import asyncio
import sys
import threading

from aiohttp import web

ANSWER = {
    "id": "chatcmpl-stub",
    "object": "chat.completion",
    "model": "stub",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "word " * 40}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 20, "completion_tokens": 40, "total_tokens": 60},
}


async def models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "stub", "object": "model"}]})


async def load(request: web.Request) -> web.Response:
    return web.json_response({"running": 0, "waiting": 0, "kv_usage": 0.0})


async def health(request: web.Request) -> web.Response:
    return web.Response()


async def answer(request: web.Request) -> web.Response:
    await request.read()
    return web.json_response(ANSWER)


async def main() -> None:
    app = web.Application(client_max_size=1 << 30)
    app.add_routes([web.get("/v1/models", models), web.get("/load", load), web.get("/health", health)])
    app.add_routes([web.get("/ready", health), web.post("/{path:.*}", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def until_closed() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=until_closed, daemon=True).start()
    await ended.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
