"""Start of `rondo serve` on a 4M-parameter model: from starting the process to the first token over HTTP.

The client asks for a streamed completion as soon as the port takes connections and stops the clock at the first event.
The files are in the page cache. Where the time goes is shown beside it: importing torch alone, in a fresh process, is
the floor that no server on PyTorch gets under.
"""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from common import Report, alternate, arguments, median, say
from small_model import write_small_model


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def first_token(folder: Path) -> float:
    port = free_port()
    body = json.dumps({"model": folder.name, "prompt": "abc", "max_tokens": 4, "stream": True}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "rondo.cli", "serve", str(folder), "--port", str(port), "--log.level=error"]
    )
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit(f"rondo serve ended with exit code {process.returncode}")
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    line = answer.readline()
                    taken = time.perf_counter() - start
                    assert line.startswith(b"data: {"), line
                    return taken
            except OSError:
                time.sleep(0.005)
    finally:
        process.terminate()
        process.wait()


def import_torch() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    report = Report("serve_start")
    with tempfile.TemporaryDirectory() as root:
        folder = write_small_model(Path(root) / "small")
        first_token(folder)
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
        runs = alternate(2 if options.quick else 5, ours=lambda: first_token(folder), floor=import_torch)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report.ours["seconds to first token"] = median(runs["ours"])
    report.limit["seconds to first token"] = median(runs["floor"])
    report.limit["how"] = "a process that imports torch and does nothing else"
    spent = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    say(f"CPU seconds a round, of both: {spent / len(runs['ours']):.2f}")
    report.notes.append(
        f"load average {os.getloadavg()[0]:.1f}; runs {[round(run, 2) for run in runs['ours']]}"
    )
    report.show(options.json)


if __name__ == "__main__":
    main()
