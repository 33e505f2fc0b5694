"""A peer in an environment of its own: a process that answers each JSON line with a JSON line."""

import json
import os
import re
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

ROOT = Path(os.environ.get("RONDO_PEERS") or "~/.cache/rondo/peers").expanduser()
SECONDS = 600
"""The longest that a peer may take to start, or to answer."""


class Absent(Exception):
    """The peer does not run here; the text says why."""


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment."""
    python = ROOT / peer / "bin" / "python"
    if not python.exists():
        raise Absent(f"{peer} is not installed: bash tests/real/setup.sh .venv/bin/python {peer}")
    return python


def run(peer: str, script: str, *arguments: object) -> None:
    """Once, until it ends."""
    command = [python_of(peer), Path(__file__).with_name(script), *map(str, arguments)]
    done = subprocess.run(command, env=environment({}), capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise Absent(f"{script} failed: {reason(done.stderr)}")


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


def reason(messages: str) -> str:
    """The first error that the peer names; what follows is what came of it."""
    named = re.search(r"\b\w*(?:Error|Exception): .+", messages)
    lines = messages.strip().splitlines()
    return named.group() if named else lines[-1] if lines else "it said nothing"


class Peer:
    """Stopped between two questions: threads that wait by spinning would take a core from whoever is asked next.
    It is told its settings first, and says when it is ready."""

    def __init__(self, peer: str, script: str, settings: dict[str, Any], **changes: str) -> None:
        self.name = peer
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in close)
        command: Sequence[object] = [python_of(peer), Path(__file__).with_name(script)]
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr if os.environ.get("RONDO_DEBUG") else self.errors,
            text=True,
            env=environment(changes),
            start_new_session=True,
        )
        try:
            self.ask(**settings)
        except BaseException:
            self.close()
            raise

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # the empty answer below says that it has ended
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], SECONDS)[0]:
            raise Absent(f"{self.name} did not answer within {SECONDS} s")
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise Absent(f"{self.name} ended: {reason(self.errors.read())}")
        answer: dict[str, Any] = json.loads(line)
        self._signal(signal.SIGSTOP)
        return answer

    def _signal(self, number: int) -> None:
        """To it and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.wait()
        self.errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
