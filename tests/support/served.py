"""`rondo serve` as a process of its own on loopback, which can be killed and started again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx

from rondo import models
from rondo.base.storage.files import atomic_dir
from rondo.models import Decoder
from support.forked import Forked
from support.home import own_home
from support.nursery import Nursery
from support.ports import free_port
from support.tiny import tiny_model, tiny_tokenizer
from support.waiting import wait_until

ADMIN_KEY = "operator"
SOURCES = Path(__file__).parents[2] / "src"


def write_model(folder: Path, model: Decoder | None = None) -> Path:
    """With its tokenizer; the tiny one by default."""
    with atomic_dir(folder) as whole:
        models.save_into(model or tiny_model(), whole)
        tiny_tokenizer().save(whole)
    return folder


class Served:
    def __init__(self, model: Path | str, folder: Path, *flags: str, nursery: Nursery | None = None) -> None:
        """`folder` is for its home and its log. With a nursery, which has imported `support.forked.SERVE`, it is a fork
        of it, and starts sooner."""
        self._nursery, self._folder = nursery, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = folder / ("log" if nursery is None else "err")
        self._argv = ["serve", str(model), f"--port={port}", *flags]
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(SOURCES),
            "RONDO_HOME": str(own_home(folder / "home")),
            "RONDO_SERVER_ADMIN_KEY": ADMIN_KEY,
        }
        self._process: subprocess.Popen[bytes] | Forked | None = None

    def start(self) -> Served:
        """It need not answer yet."""
        if self._nursery is not None:
            self._process = Forked(self._nursery, self._folder, self._argv, self._environment)
            return self
        command = [sys.executable, "-m", "rondo.cli", *self._argv]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(command, env=self._environment, stdout=out, stderr=out)
        return self

    def wait(self) -> Served:
        """Until it serves; kernels that have changed are compiled first."""
        wait_until(self._serves, 240)
        return self

    def kill(self) -> None:
        """With -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _serves(self) -> bool:
        assert self._process is not None
        running = (
            self._process.is_running if isinstance(self._process, Forked) else self._process.poll() is None
        )
        assert running, self.log.read_text()[-4000:]
        try:
            return httpx.get(f"{self.url}/ready", timeout=5).is_success
        except httpx.HTTPError:
            return False
