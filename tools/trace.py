"""Counts the files that one streamed chat request runs through: `python tools/trace.py MODEL`.

Files of `models/` and `ops/` are left out: they compute, whatever the request. More than `MOST` files fail the check.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType

import httpx

from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from rondo.server.load import load_app

ROOT = str(Path(__file__).parents[1] / "src/rondo") + "/"
COMPUTE = ("models/", "ops/")
MOST = 65


class Tracer:
    def __init__(self) -> None:
        self.files: set[str] = set()
        self.on = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if self.on and event == "call" and name.startswith(ROOT):
            self.files.add(name[len(ROOT) :])


async def ask(client: httpx.AsyncClient, model: str) -> None:
    message = {"role": "user", "content": "reverse PLANET"}
    body = {"model": model, "messages": [message], "max_tokens": 4, "stream": True}
    (await client.post("/v1/chat/completions", json=body)).raise_for_status()


async def traced(tracer: Tracer, model: str) -> None:
    app, engine, name = load_app(model, EngineConfig(device="cpu"), ServerConfig())
    try:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://localhost"
        ) as client:
            await ask(client, name)
            tracer.on = True
            sys.setprofile(tracer)
            await ask(client, name)
            sys.setprofile(None)
            tracer.on = False
    finally:
        engine.stop()


def main() -> int:
    tracer = Tracer()
    threading.setprofile(tracer)
    asyncio.run(traced(tracer, sys.argv[1]))
    packages = defaultdict[str, list[str]](list)
    for file in sorted(tracer.files):
        if not file.startswith(COMPUTE):
            package, _, rest = file.partition("/")
            packages[package].append(rest)
    for package, files in packages.items():
        print(f"{package:8} {len(files):3}  {' '.join(files)}")
    total = sum(map(len, packages.values()))
    print(f"{total} files, at most {MOST}")
    return total > MOST


if __name__ == "__main__":
    sys.exit(main())
