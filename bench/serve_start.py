"""Start of `rondo serve`: from starting the process to the first token over HTTP, and the memory it then holds.

The client asks for a streamed completion as soon as the port takes connections and stops the clock at the first event.
The files are in the page cache. Where the time goes is shown beside it: importing torch alone, in a fresh process, is
the floor that no server on PyTorch gets under. The memory is the process's own, without the pages of the weights, which
are the file's. `--compile` empties the cache of compiled kernels before each start, as on a new machine; `--model-size
0.6b` takes the shape of Qwen3 0.6B in bf16 instead of a model of 4M parameters.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from common import Report, alternate, arguments, free_port, median, say
from small_model import write_qwen3_06b, write_small_model


def first_token(folder: Path, home: Path, memory: list[float]) -> float:
    port = free_port()
    body = json.dumps({"model": folder.name, "prompt": "abc", "max_tokens": 4, "stream": True}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "rondo.cli", "serve", str(folder), "--port", str(port), "--log.level=error"],
        env=os.environ | {"RONDO_HOME": str(home)},
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
                    memory.append(own_megabytes(process.pid))
                    return taken
            except OSError:
                time.sleep(0.005)
    finally:
        process.terminate()
        process.wait()


def own_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return float(status.split("RssAnon:")[1].split()[0]) / 1024


def import_torch(memory: list[float]) -> float:
    """Its memory too: it says when it is there, and waits to be looked at."""
    start = time.perf_counter()
    code = "import torch; print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    taken = time.perf_counter() - start
    memory.append(own_megabytes(process.pid))
    process.communicate(b"\n")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model-size", choices=("4m", "0.6b"), default="4m")
    parser.add_argument("--compile", action="store_true")
    own, rest = parser.parse_known_args()
    options = arguments(__doc__.splitlines()[0], argv=rest)
    report = Report("serve_start")
    memory: dict[str, list[float]] = {"ours": [], "floor": []}
    with tempfile.TemporaryDirectory() as root:
        home = Path(root) / "home"
        write = write_qwen3_06b if own.model_size == "0.6b" else write_small_model
        folder = write(Path(root) / "served")

        def ours() -> float:
            if own.compile:
                shutil.rmtree(home, ignore_errors=True)
            return first_token(folder, home, memory["ours"])

        first_token(folder, home, [])
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
        runs = alternate(2 if options.quick else 5, ours=ours, floor=lambda: import_torch(memory["floor"]))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report.ours["seconds to first token"] = median(runs["ours"])
    report.limit["seconds to first token"] = median(runs["floor"])
    report.ours["MB after it"] = median(memory["ours"])
    report.limit["MB after it"] = median(memory["floor"])
    report.limit["how"] = "a process that imports torch and does nothing else"
    spent = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    say(f"CPU seconds a round, of both: {spent / len(runs['ours']):.2f}")
    report.notes.append(
        f"{own.model_size}; load average {os.getloadavg()[0]:.1f}; runs {[round(run, 2) for run in runs['ours']]}"
    )
    report.show(options.json)


if __name__ == "__main__":
    main()
