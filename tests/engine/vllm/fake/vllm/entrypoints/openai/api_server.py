"""Answers at the socket file, and does as files in the folder `FAKE_VLLM` say: `slow` to start, `broken` at the start,
`hangs` in a weight update. It writes there what was asked of it, and the ids of its processes."""

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

FOLDER = Path(os.environ["FAKE_VLLM"])
FIGURES = """# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="base"} 0.25
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="base"} 7.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="base"} 3.0
# TYPE vllm:num_preemptions_created gauge
vllm:num_preemptions_created{engine="0",model_name="base"} 1e9
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="base"} 1000.0
# TYPE http_requests_total counter
http_requests_total 5.0
"""


def note(what: object) -> None:
    with (FOLDER / "asked").open("a") as file:
        file.write(json.dumps(what) + "\n")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None: ...

    def address_string(self) -> str:
        return ""

    def do_GET(self) -> None:
        self.answer(FIGURES if self.path == "/metrics" else "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
        if self.path == "/inference/v1/generate":
            self.generate(body)
            return
        note([self.path, body])
        if self.path == "/update_weights" and (FOLDER / "hangs").exists():
            time.sleep(60)
        self.answer("{}")

    def generate(self, body: dict) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = body["sampling_params"]["max_tokens"]
        for i in range(count):
            reason = "length" if i == count - 1 else None
            choice = {"index": 0, "token_ids": [5], "finish_reason": reason, "stop_reason": None}
            event = {"choices": [choice | {"weight_versions": None, "logprobs": None}]}
            self.chunk(f"data: {json.dumps(event)}\n\n")
            time.sleep(0.02)
        self.chunk("data: [DONE]\n\n")
        self.chunk("")

    def chunk(self, text: str) -> None:
        self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


if __name__ == "__main__":
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    (FOLDER / "pids").write_text(f"{os.getpid()} {worker.pid}")
    note(["start", sys.argv[sys.argv.index("--model") + 1]])
    if (FOLDER / "broken").exists():
        sys.exit("ValueError: no memory")
    while (FOLDER / "slow").exists():
        time.sleep(0.01)
    Server(sys.argv[sys.argv.index("--uds") + 1], Handler).serve_forever()
