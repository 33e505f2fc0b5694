import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rondo import models
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="session")
def chat_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the models `base` and `tuned`, and `plain` without a chat template."""
    home = own_home(tmp_path_factory.mktemp("chat"))
    for seed, name in enumerate(("base", "plain", "tuned")):
        folder = home / "models" / name
        folder.mkdir(parents=True)
        models.save_into(tiny_model(seed), folder)
        tiny_tokenizer().save(folder)
    (home / "models" / "plain" / "chat_template.jinja").unlink()
    return home


class OtherServer(http.server.ThreadingHTTPServer):
    """A server of OpenAI's API that knows no log-probabilities. Its answer has three words and no end: it waits until
    the client has closed the connection."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), OtherHandler)
        self.bodies: list[dict[str, object]] = []
        self.keys: list[str | None] = []
        self.left = threading.Event()
        self.endless = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class OtherHandler(http.server.BaseHTTPRequestHandler):
    server: OtherServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._json(200, {"data": [{"id": "first"}, {"id": "second"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.append(self.headers["Authorization"])
        if "logprobs" in body:
            error = {
                "message": "logprobs are not supported",
                "type": "invalid_request_error",
                "param": "logprobs",
            }
            self._json(400, {"error": error})
            return
        self.server.bodies.append(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for word in ("Hello", " from", f" {body['model']}"):
            self._event({"choices": [{"delta": {"content": word}, "finish_reason": None}]})
        if self.server.endless:
            self.connection.recv(1)
            self.server.left.set()
            return
        self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})

    def _event(self, event: object) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()

    def _json(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def other() -> Iterator[OtherServer]:
    with OtherServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
