"""The web page: files that `make page` builds, or instructions if they are missing."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, HTMLResponse, Response

from rondo.base.errors import NotFound

router = APIRouter(include_in_schema=False)
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
FOLDER = Path(__file__).parent.parent / "static"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
LASTING = "public, max-age=31536000, immutable"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
MISSING = """<!doctype html><html lang="en"><title>Rondo</title><body>
<h1>Rondo</h1>
<p>The API works at <code>/v1</code>. The web page is not built: run <code>make page</code> in the source folder
(it needs npm), then start the gateway again.</p>
<p><a href="/openapi.json">API description</a></p></body></html>"""


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    page = FOLDER / "index.html"
    if not page.is_file():
        return HTMLResponse(MISSING, headers=HEADERS)
    return _file(request, page, "no-cache")


@router.api_route("/assets/{name}", methods=["GET", "HEAD"])
async def asset(request: Request, name: str) -> Response:
    """File names contain a hash of their content."""
    file = FOLDER / "assets" / name
    if not NAME.fullmatch(name) or file.suffix not in TYPES or not file.is_file():
        raise NotFound(f"There is no file {name[:100]!r}.", param="name")
    return _file(request, file, LASTING)


def _file(request: Request, file: Path, caching: str) -> Response:
    """The file that the build compressed, where the client accepts it."""
    headers = HEADERS | {"Cache-Control": caching, "Vary": "Accept-Encoding"}
    kind = TYPES[file.suffix]
    small = file.with_name(f"{file.name}.gz")
    if _accepts_gzip(request.headers.get("accept-encoding", "")) and small.is_file():
        file, headers["Content-Encoding"] = small, "gzip"
    return FileResponse(file, headers=headers, media_type=kind)


def _accepts_gzip(accepted: str) -> bool:
    names = [each.replace(" ", "") for each in accepted.split(",")]
    return any(name.split(";")[0] == "gzip" and not name.endswith(";q=0") for name in names)
