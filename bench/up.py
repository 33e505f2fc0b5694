"""Start of `rondo up` with an existing model: from starting the command to the web page, and to the first token through
the gateway; 4M parameters.

The client requests both repeatedly from the start on. The files are in the page cache, and the store exists, as at any
start but the first. CPU time is that of all processes until the first token, which other work on the machine changes
less than the times.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from common import Report, arguments, free_port, median, say
from gateways import cpu_of
from small_model import write_small_model

POLL_SECONDS = 0.02
LONGEST_SECONDS = 300


def answers(request: urllib.request.Request | str) -> bool:
    """Whether the first line of the response has been received."""
    with suppress(OSError), urllib.request.urlopen(request, timeout=LONGEST_SECONDS) as response:
        return bool(response.readline())
    return False


def start(folder: Path, home: Path) -> tuple[float, float, float]:
    """Seconds until the page, seconds until the first token, and CPU seconds until then."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    body = {"model": folder.name, "prompt": "abc", "max_tokens": 4, "stream": True}
    headers = {"Content-Type": "application/json"}
    token = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    line = [sys.executable, "-m", "rondo.cli", "up", str(folder), f"--port={port}"]
    begun = time.perf_counter()
    process = subprocess.Popen(
        line, env=os.environ | {"RONDO_HOME": str(home)}, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        times = []
        for request in (url, token):
            while not answers(request):
                if process.poll() is not None or time.perf_counter() - begun > LONGEST_SECONDS:
                    raise SystemExit("rondo up did not start")
                time.sleep(POLL_SECONDS)
            times.append(time.perf_counter() - begun)
        return times[0], times[1], cpu_of(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    report = Report("up")
    with tempfile.TemporaryDirectory() as root:
        home = Path(root) / "home"
        folder = write_small_model(Path(root) / "served")
        start(folder, home)
        runs = []
        for _ in range(1 if options.quick else 5):
            runs.append(start(folder, home))
            say(f"{runs[-1]}, load average {os.getloadavg()[0]:.1f}")
    pages, tokens, cpu = (median(list(values)) for values in zip(*runs, strict=True))
    report.ours = {"seconds to the page": pages, "seconds to the first token": tokens, "CPU seconds": cpu}
    report.limit = {"seconds to the page": 5, "seconds to the first token": 5, "how": "the target"}
    report.notes.append(f"load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


if __name__ == "__main__":
    main()
