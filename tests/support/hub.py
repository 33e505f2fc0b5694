"""A Hugging Face Hub on loopback: the routes that `huggingface_hub` uses, with faults on request.

Large files are redirected to another host name, as the Hub redirects to its CDN.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.home import own_home

LFS_BYTES = 1000
"""Size from which a file has a SHA-256 and a redirect."""


@dataclass
class FakeRepo:
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        text = repr(sorted((name, hashlib.sha1(data).hexdigest()) for name, data in files.items()))
        name = hashlib.sha1(text.encode()).hexdigest()
        self.commits[name] = dict(files)
        self.branches[branch] = name
        return name

    def resolve(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision)


@dataclass
class Request:
    method: str
    host: str
    path: str
    range: str | None
    token: str | None


class FakeHub:
    """`repos` by path: `ORG/NAME` of a model, `datasets/ORG/NAME` of a data set."""

    def __init__(self) -> None:
        self.repos: dict[str, FakeRepo] = {}
        self.token = "hf_valid"
        self.requests: list[Request] = []
        self.cuts: dict[str, list[int]] = {}
        """Bytes after which the next responses for a file are cut off."""
        self.damages: dict[str, int] = {}
        """Number of responses for a file that have a wrong byte."""
        self.stalls: dict[str, int] = {}
        """Bytes after which the next response for a file pauses until `release`."""
        self.release = threading.Event()
        self.ranges_supported = True
        self.status: int | None = None
        """Status of every response, if set."""
        self.contents: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients end in the middle
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def repo(self, path: str, files: Mapping[str, bytes] | Path | None = None) -> FakeRepo:
        found = self.repos.setdefault(path, FakeRepo())
        if isinstance(files, Path):
            files = {
                str(each.relative_to(files)): each.read_bytes() for each in files.rglob("*") if each.is_file()
            }
        if files is not None:
            found.commit(files)
        return found

    def ranges(self, file: str) -> list[str | None]:
        """The `Range` headers of the requests for a file's content."""
        return [each.range for each in self.requests if each.method == "GET" and each.path.endswith(file)]

    @contextmanager
    def running(self) -> Iterator[FakeHub]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.release.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._write()

    def log_message(self, *_: object) -> None: ...

    def _write(self) -> None:
        """Creation of a repository and commits of small files, as `upload_folder` sends them."""
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = self.headers.get("Authorization")
        hub.requests.append(Request(self.command, "", path, None, token))
        if token != f"Bearer {hub.token}":
            return self._send(401, {"X-Error-Message": "Invalid username or password."})
        if path == "/api/repos/create":
            told = json.loads(body)
            name = f"{told['organization']}/{told['name']}"
            hub.repo(name, {}).private = told.get("visibility") == "private"
            return self._json({"url": f"{hub.url}/{name}"})
        name = "/".join(path.removeprefix("/api/models/").split("/")[:2])
        if "/preupload/" in path:
            files = json.loads(body)["files"]
            modes = [
                {
                    "path": each["path"],
                    "uploadMode": "regular",
                    "shouldIgnore": False,
                }
                for each in files
            ]
            return self._json({"files": modes})
        files = dict[str, bytes]()
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
        commit = hub.repos[name].commit(files)
        self._json({"commitOid": commit, "commitUrl": f"{hub.url}/{name}/commit/{commit}"})

    def _json(self, body: object) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        given = self.headers.get("Authorization")
        host = self.headers.get("Host", "").partition(":")[0]
        hub.requests.append(Request(self.command, host, path, self.headers.get("Range"), given))
        if hub.status is not None:
            return self._send(hub.status)
        if path.startswith("/cdn/"):
            return self._content(path.rpartition("/")[2], hub.contents[path.split("/")[2]])
        if given not in (None, f"Bearer {hub.token}"):
            return self._send(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        api = path.startswith("/api/")
        path = path.removeprefix("/api/models/") if path.startswith("/api/models/") else path
        path = path.removeprefix("/api/").strip("/")
        count = 3 if path.startswith("datasets/") else 2
        name, rest = "/".join(path.split("/")[:count]), path.split("/")[count:]
        repo = hub.repos.get(name)
        if repo is None or (repo.private and given is None):
            return self._send(401 if given is None else 404, {"X-Error-Code": "RepoNotFound"})
        if api:
            answer = self._tree if rest[:1] == ["tree"] else self._info
            return answer(repo, name, "/".join(rest[1:]) or "main")
        if repo.gated and given is None:
            return self._send(401, {"X-Error-Code": "GatedRepo"})
        return self._file(repo, rest[1], "/".join(rest[2:]))

    def _info(self, repo: FakeRepo, name: str, revision: str) -> None:
        commit = repo.resolve(revision)
        if commit is None:
            return self._send(404, {"X-Error-Code": "RevisionNotFound"})
        siblings = []
        for path, data in repo.commits[commit].items():
            entry = {"rfilename": path, "size": len(data), "blobId": _git_hash(data)}
            if len(data) >= LFS_BYTES:
                sha = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        body = {"id": name.removeprefix("datasets/"), "sha": commit, "siblings": siblings, "tags": []}
        self._send(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _tree(self, repo: FakeRepo, name: str, revision: str) -> None:
        rows = []
        for path, data in repo.commits[repo.resolve(revision) or ""].items():
            row = {"type": "file", "path": path, "size": len(data), "oid": _git_hash(data)}
            if len(data) >= LFS_BYTES:
                sha = hashlib.sha256(data).hexdigest()
                row["lfs"] = {"oid": sha, "size": len(data), "pointerSize": 130}
            rows.append(row)
        self._send(200, {"Content-Type": "application/json"}, json.dumps(rows).encode())

    def _file(self, repo: FakeRepo, revision: str, path: str) -> None:
        commit = repo.resolve(revision)
        data = None if commit is None else repo.commits[commit].get(path)
        if data is None:
            return self._send(404, {"X-Error-Code": "EntryNotFound"})
        if len(data) < LFS_BYTES:
            return self._content(path, data, {"X-Repo-Commit": str(commit), "ETag": f'"{_git_hash(data)}"'})
        sha = hashlib.sha256(data).hexdigest()
        self.hub.contents[sha] = data
        headers = {
            "X-Repo-Commit": str(commit),
            "X-Linked-Etag": f'"{sha}"',
            "X-Linked-Size": str(len(data)),
            "Location": f"http://localhost:{self.hub.port}/cdn/{sha}/{path}",
        }
        return self._send(302, headers)

    def _content(self, path: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        begin, status, more = 0, 200, dict(headers or {})
        if (asked := self.headers.get("Range")) and self.hub.ranges_supported:
            begin = int(asked.removeprefix("bytes=").partition("-")[0])
            status, more["Content-Range"] = 206, f"bytes {begin}-{len(data) - 1}/{len(data)}"
        name = path.rpartition("/")[2]
        if self.hub.damages.get(name, 0) > 0:
            self.hub.damages[name] -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        cuts = self.hub.cuts.get(name, [])
        self._send(status, more, data[begin:], cuts.pop(0) if cuts else None)

    def _send(
        self,
        status: int,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        pause = self.hub.stalls.pop(self.path.rpartition("/")[2], None) if body else None
        if pause is not None:
            self.wfile.write(body[:pause])
            self.wfile.flush()
            self.hub.release.wait(300)
            cut = 0
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


def _git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with an empty cache; the variables name both, also for processes that a test starts."""
    with FakeHub().running() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "rondo")))
        # The package reads the variable when it is imported, which an earlier test may have done.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield hub
