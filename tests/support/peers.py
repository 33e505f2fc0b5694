"""Where the peers are that `tests/real/setup.sh` installs."""

import os
from pathlib import Path

import pytest

PEERS = Path(os.environ.get("RONDO_PEERS") or "~/.cache/rondo/peers").expanduser()


def peer_python(peer: str) -> Path:
    """One that is missing is a failure and no skip: who asks for the tests against it wants to know."""
    python = PEERS / peer / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{peer} is not installed in {PEERS}: run `bash tests/real/setup.sh`", pytrace=False)
    return python
