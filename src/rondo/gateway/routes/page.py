"""The web page: files that `make page` builds, or instructions if they are missing."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, HTMLResponse, Response

from rondo.base.errors import NotFound

router = APIRouter(include_in_schema=False)
FOLDER = Path(__file__).parent.parent / "static"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
LASTING = "public, max-age=31536000, immutable"
MISSING = """<!doctype html><html lang="en"><title>Rondo</title><body>
<h1>Rondo</h1>
<p>The API works at <code>/v1</code>. The web page is not built: run <code>make page</code> in the source folder
(it needs npm), then start the gateway again.</p>
<p><a href="/openapi.json">API description</a></p></body></html>"""


@router.api_route("/", methods=["GET", "HEAD"])
async def index() -> Response:
    page = FOLDER / "index.html"
    if not page.is_file():
        return HTMLResponse(MISSING, headers=HEADERS)
    return FileResponse(page, headers=HEADERS | {"Cache-Control": "no-cache"})


@router.api_route("/assets/{name}", methods=["GET", "HEAD"])
async def asset(name: str) -> Response:
    """File names contain a hash of their content."""
    file = FOLDER / "assets" / name
    if file.parent != FOLDER / "assets" or not file.is_file():
        raise NotFound(f"There is no file {name!r}.", param="name")
    return FileResponse(file, headers=HEADERS | {"Cache-Control": LASTING})
