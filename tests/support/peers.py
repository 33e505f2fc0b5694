"""The peers that `tests/real/setup.sh` installs: where they are, and programs of theirs."""

import os
import subprocess
from pathlib import Path

import pytest

PEERS = Path(os.environ.get("RONDO_PEERS") or "~/.cache/rondo/peers").expanduser()
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


def peer_python(peer: str) -> Path:
    """One that is missing is a failure and no skip: who asks for the tests against it wants to know."""
    python = PEERS / peer / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{peer} is not installed in {PEERS}: run `bash tests/real/setup.sh`", pytrace=False)
    return python


def run_peer(peer: str, *command: object, asked: str = "", seconds: float = 280, **changes: str) -> str:
    """What a program writes that the peer's own Python runs and that reads `asked`; it does not see our packages."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(peer_python(peer)), *map(str, command)],
        input=asked,
        env=own | ENVIRONMENT | changes,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
