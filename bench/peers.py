"""A peer in an environment of its own: a process that answers each JSON line with a JSON line."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from common import THREADS
from rondo.engine.vllm.child.process import first_error
from rondo.models.files.gguf.export import export_gguf

ROOT = Path(os.environ.get("RONDO_PEERS") or "~/.cache/rondo/peers").expanduser()
SECONDS = 600
"""The longest that a peer may take to start, or to answer."""
GGUF_TYPES = {"float32": "F32", "bfloat16": "BF16"}


class Absent(Exception):
    """The peer does not run here; the text says why."""


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment; transformers is in our own."""
    if peer == "transformers":
        return Path(sys.executable)
    python = ROOT / peer / "bin" / "python"
    if not python.exists():
        raise Absent(f"{peer} is not installed: bash tests/real/setup.sh .venv/bin/python {peer}")
    return python


def gguf(folder: Path, dtype: str) -> Path:
    """A model's file for llama.cpp, beside its folder; written where there is none. `dtype` is one of torch's or GGUF's
    names."""
    file = folder.with_name(f"{folder.name}-{dtype}.gguf")
    if not file.exists():
        export_gguf(folder, file, GGUF_TYPES.get(dtype, dtype.upper()))
    return file


def environment(changes: dict[str, str]) -> dict[str, str]:
    """Ours, without our own code and with our number of threads."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**given, "OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1", **changes}


def vllm_environment() -> dict[str, str]:
    """What vLLM's documentation asks for on a CPU: its OpenMP, a fast allocator, a thread on each core."""
    cores = sorted(os.sched_getaffinity(0))[:THREADS]
    preloaded = [ROOT / "vllm/lib/libiomp5.so", *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
    return {
        "LD_PRELOAD": ":".join(map(str, preloaded)),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": str(ROOT / "vllm/cache"),
        "VLLM_NO_USAGE_STATS": "1",
    }


class Group:
    """A process and what it starts, stopped when nobody asks: threads that wait by spinning would take a core from
    whoever is asked next. What it says goes nowhere, but for the reason why it ended."""

    def __init__(self, name: str, command: Sequence[object], env: dict[str, str], **options: Any) -> None:
        self.name = name
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in close)
        shown = sys.stderr if os.environ.get("RONDO_DEBUG") else self.said
        streams: dict[str, Any] = {"stdout": shown, "stderr": shown} | options
        self.process = subprocess.Popen(
            [str(part) for part in command], text=True, env=env, start_new_session=True, **streams
        )

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def ended(self) -> Absent:
        self.said.seek(0)
        return Absent(f"{self.name} ended: {first_error(self.said.read())}")

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Peer(Group):
    """It is told its settings first, and says when it is ready."""

    def __init__(self, peer: str, script: str, settings: dict[str, Any], **changes: str) -> None:
        command = [python_of(peer), Path(__file__).with_name(script)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        super().__init__(peer, command, environment(changes), **pipes)
        try:
            self.ask(**settings)
        except BaseException:
            self.close()
            raise

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # the empty answer below says that it has ended
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], SECONDS)[0]:
            raise Absent(f"{self.name} did not answer within {SECONDS} s")
        line = self.process.stdout.readline()
        if not line:
            raise self.ended()
        answer: dict[str, Any] = json.loads(line)
        self.signal(signal.SIGSTOP)
        return answer
