"""An engine of the standard library for tests of the supervisor: `python fake_engine.py PORT NAMES FOLDER`.

Files in FOLDER control it: `fail` ends the start with an error, `slow` delays it until the file is gone, `busy` reports
a running request, and `asleep` is an engine that is not ready. Each start adds a line to `starts`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Engine(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, names: list[str], folder: Path) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.cards = {names[0]: names[1:]}
        self.folder, self.used = folder, time.monotonic()


class _Handler(BaseHTTPRequestHandler):
    server: _Engine
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        if self.path == "/load":
            idle, busy = time.monotonic() - server.used, (server.folder / "busy").exists()
            self._send({"running": int(busy), "waiting": 0, "idle_seconds": 0 if busy else idle})
        elif self.path == "/ready" and (server.folder / "asleep").exists():
            self._send({"ready": False}, 503)
        elif self.path == "/v1/models":
            self._send({"data": [{"id": name, "aliases": names} for name, names in server.cards.items()]})
        else:
            self._send({"weight_version": 0})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/load_lora_adapter":
            if (self.server.folder / "no-adapters").exists():
                self._send({"error": {"message": "rank 128 exceeds 64"}}, 400)
                return
            self.server.cards[body["lora_name"]] = []
        elif self.path == "/v1/unload_lora_adapter":
            self.server.cards.pop(body["lora_name"])
        self.server.used = time.monotonic()
        self._send({"model": body.get("model"), "choices": []})

    def _send(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main(port: int, names: list[str], folder: Path) -> None:
    with (folder / "starts").open("a") as file:
        file.write("start\n")
    while (folder / "slow").exists():
        time.sleep(0.01)
    if (folder / "fail").exists():
        print("error: the weights are broken", flush=True)
        raise SystemExit(3)
    engine = _Engine(port, names, folder)
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].split(","), Path(sys.argv[3]))
