"""A version over HTTP: the routes that `transports/http.py` reads, and a server of a learner's current version."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rondo.base.errors import NotFound, RondoError
from rondo.models.files.headers import SINGLE, read_config
from rondo.web.admin import admin_route
from rondo.web.config import ListenConfig
from rondo.web.errors import on_bug, on_http_error, on_rondo_error
from rondo.web.http import read_body
from rondo.web.run import bind, make_server, url_of
from rondo.weights.checksum import bytes_of
from rondo.weights.manifest import Manifest, layout_in
from rondo.weights.plan.boxes import ByteRun
from rondo.weights.transports.http import READER
from rondo.weights.transports.offers import Offered, Offers
from rondo.weights.transports.segment import read_segment

LARGEST_BODY = 64 << 20
CHUNK = 1 << 20
STOP_SECONDS = 10.0


def version_routes(model: str, offers: Offers, key: str) -> list[Route]:
    """Routes of the offered versions: description, bytes by ranges, changes of a bucket, and the end of a fetch."""

    def asked(request: Request) -> Offered:
        version = request.path_params["version"]
        found = None
        if request.path_params["model"] == model:
            found = offers.find(version, request.headers.get(READER, ""))
        if found is None:
            raise NotFound(f"version {version} of {request.path_params['model']} is not held here.")
        return found

    async def describe(request: Request) -> Response:
        version = asked(request)
        folder = version.held.folder
        found = {
            "delta_base": None if version.delta is None else version.delta.base,
            "header": base64.b64encode(layout_in(folder).header).decode(),
            "config": read_config(folder),
            "manifest": json.loads(Manifest.read(folder).dump()),
        }
        return JSONResponse(found)

    async def read(request: Request) -> Response:
        found = asked(request)
        folder = found.held.folder
        body = json.loads(await read_body(request, LARGEST_BODY))
        runs = [ByteRun(*run) for run in body["runs"]]
        data = np.memmap(folder / SINGLE, np.uint8, "r")
        headers = {"content-length": str(sum(run.nbytes for run in runs))}
        reader = request.headers.get(READER, "")

        def chunks() -> Iterator[bytes]:
            for chunk in _chunks(data, runs):
                yield chunk
                offers.progress(found, reader)

        return StreamingResponse(chunks(), headers=headers, media_type="application/octet-stream")

    async def delta(request: Request) -> Response:
        """Encoded changes of a bucket; empty if the bucket is read whole."""
        found = asked(request).delta
        number = int(json.loads(await read_body(request, LARGEST_BODY))["bucket"])
        if found is None or not 0 <= number < len(found.buckets):
            raise NotFound(f"there is no delta of bucket {number}.")
        return Response(found.buckets[number] or b"", media_type="application/octet-stream")

    async def leave(request: Request) -> Response:
        """The end of a reader's fetch, after which its version may be overwritten."""
        offers.leave(request.path_params["version"], request.headers.get(READER, ""))
        return Response(status_code=204)

    at = "/v1/weights/{model:path}/{version}"
    return [
        admin_route(at, describe, key, "GET"),
        admin_route(at + "/read", read, key),
        admin_route(at + "/delta", delta, key),
        admin_route(at + "/leave", leave, key),
    ]


class VersionServer:
    """Serves a learner's current version to engines of other hosts, from a thread, with a key of its own."""

    def __init__(self, model: str, host: str, deltas: bool = False) -> None:
        """`deltas`: each version is compared with the version before it, and receivers that have that one read only
        the changed elements."""
        key = secrets.token_urlsafe(24)
        self._offers, self._deltas = Offers(), deltas
        listener = bind(host, 0)
        name = quote(model, safe="")
        self.source = f"{url_of(listener)}/v1/weights/{name}".replace("http://", f"http://rondo:{key}@")
        """Address of the current version, with the key."""
        app = Starlette(
            routes=version_routes(model, self._offers, key),
            exception_handlers={RondoError: on_rondo_error, HTTPException: on_http_error, Exception: on_bug},
        )
        self._server = make_server(app, ListenConfig(host=host))
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server.serve(sockets=[listener])),
            name="rondo-weights",
            daemon=True,
        )
        self._thread.start()

    def offer(self, folder: Path, version: int) -> None:
        """Serves the complete version of a segment instead of the present one."""
        held = read_segment(folder, version, verify=False, seconds=STOP_SECONDS)
        self._offers.offer(held, self._deltas)

    def expire(self) -> None:
        """Releases a version whose readers make no progress."""
        self._offers.expire()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS)
        with suppress(OSError):
            self._offers.close()


def _chunks(data: Any, runs: Sequence[ByteRun]) -> Iterator[bytes]:
    for run in runs:
        part = bytes_of(data, run)
        for start in range(0, len(part), CHUNK):
            yield bytes(part[start : start + CHUNK])
