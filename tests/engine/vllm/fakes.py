"""A Python for which something like vLLM is installed: see fake/."""

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from support.waiting import wait_until

FAKE = Path(__file__).with_name("fake")


@dataclass
class Fake:
    """`folder` is where it looks for what to do, and writes what was asked of it."""

    folder: Path
    python: str

    def does(self, what: str, on: bool = True) -> None:
        (self.folder / what).touch() if on else (self.folder / what).unlink()

    def asked(self) -> list[list[object]]:
        file = self.folder / "asked"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def paths(self) -> list[object]:
        return [path for path, _ in self.asked()]

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "pids").read_text().split()]

    def kill(self) -> None:
        """The server alone; its worker is left to who started it."""
        os.kill(self.pids()[0], signal.SIGKILL)

    def wait_for(self, path: str, times: int = 1) -> None:
        wait_until(lambda: self.paths().count(path) >= times)


def make_fake(tmp_path: Path, version: str = "0.32.1") -> Fake:
    folder = tmp_path / "fake"
    (folder / "vllm").mkdir(parents=True)
    for file in ("__init__.py", "entrypoints"):
        (folder / "vllm" / file).symlink_to(FAKE / "vllm" / file)
    (folder / "vllm" / "_version.py").write_text(f"__version__ = version = '{version}'\n")
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nexport FAKE_VLLM={folder} PYTHONPATH=$PYTHONPATH:{folder}\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return Fake(folder, str(python))
