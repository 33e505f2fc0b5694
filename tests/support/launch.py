"""Ranks as processes, as a launcher starts them: for what needs torch's default process group. Each costs seconds of
imports, so one launch checks many things; where no default group is needed, `support.ranks` is cheaper."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rondo.base.process import leave
from support.ports import free_port
from support.waiting import scaled

SOURCES = Path(__file__).parents[2] / "src"
TESTS = Path(__file__).parents[1]
SHOWN = 4000
"""Characters of what a rank that failed has said last."""


class RankFailed(AssertionError):
    pass


def launch(
    work: Callable[..., Any],
    size: int,
    *arguments: Any,
    seconds: float = 120,
    backend: str | None = "gloo",
    environment: Mapping[str, str] | None = None,
) -> list[Any]:
    """What `work(*arguments)`, a function of a module that can be imported, returns in each of `size` processes that
    have torchrun's environment. Its module is imported in each, so it should import no more than it needs.

    With a `backend` the default group exists while it runs; with None it makes what it wants. The first rank that fails
    ends all, and its traceback is in the error. `seconds` is the limit on an idle machine.
    """
    given = pickle.dumps((backend, work, arguments))
    told = shared(size) | dict(environment or {})
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_Rank(Path(folder), rank, given, told) for rank in range(size)]
        try:
            _wait(ranks, seconds)
            return [rank.result() for rank in ranks]
        finally:
            for rank in ranks:
                rank.end()


def shared(size: int) -> dict[str, str]:
    """Of torchrun's environment, what is the same for all of `size` ranks."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(SOURCES), str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }


def fork(
    work: Callable[..., Any],
    size: int,
    *arguments: Any,
    imports: Sequence[str] = (),
    seconds: float = 120,
    backend: str | None = "gloo",
) -> list[Any]:
    """As `launch`, with ranks that are forks of one process, which has imported the module of `work` and `imports`: an
    import of torch costs seconds of CPU time, and here it is paid once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").write_bytes(pickle.dumps((imports, (backend, work, arguments))))
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "support.launch", "--fork", str(folder), str(size)],
                env=os.environ | shared(size),
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            code = process.wait(scaled(seconds))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code != 0:
            ended = f"were not done after {seconds} s" if code is None else "failed"
            raise RankFailed(
                f"{size} ranks {ended}\n{(folder / 'said').read_text(errors='replace')[-SHOWN:]}"
            )
        return [pickle.loads((folder / f"{rank}.out").read_bytes()) for rank in range(size)]


def _fork(folder: Path, size: int) -> int:
    """The exit code of the first rank that failed; the others end with it."""
    imports, given = pickle.loads((folder / "in").read_bytes())
    for name in imports:
        importlib.import_module(name)
    ranks = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            _work(given, folder / f"{rank}.out")
            sys.stdout.flush()
            os._exit(0)
        ranks.append(pid)
    codes = (os.waitstatus_to_exitcode(os.wait()[1]) for _ in ranks)
    return next((code for code in codes if code), 0)


class _Rank:
    def __init__(self, folder: Path, rank: int, given: bytes, environment: Mapping[str, str]) -> None:
        self.number = rank
        self._out, self._said = folder / f"{rank}.out", folder / f"{rank}.said"
        source = folder / f"{rank}.in"
        source.write_bytes(given)
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "support.launch", str(source), str(self._out)],
                env=os.environ | environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        return self._said.read_text(errors="replace")[-SHOWN:]

    def result(self) -> Any:
        return pickle.loads(self._out.read_bytes())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def _wait(ranks: Sequence[_Rank], seconds: float) -> None:
    limit = time.monotonic() + scaled(seconds)
    while True:
        codes = [rank.process.poll() for rank in ranks]
        failed = [rank for rank, code in zip(ranks, codes, strict=True) if code]
        if failed:
            raise RankFailed(_told(failed, ranks))
        if None not in codes:
            return
        if time.monotonic() > limit:
            late = [rank.number for rank, code in zip(ranks, codes, strict=True) if code is None]
            said = "\n".join(f"rank {rank.number} said:\n{rank.said()}" for rank in ranks)
            raise RankFailed(f"ranks {late} were not done after {seconds} s\n{said}")
        time.sleep(0.02)


def _told(failed: Sequence[_Rank], ranks: Sequence[_Rank]) -> str:
    """A rank that dies takes others with it, which complain of a closed connection: whoever does not is shown first."""
    others = ("Connection closed by peer", "Connection reset by peer")
    first = min(failed, key=lambda rank: any(words in rank.said() for words in others))
    return f"rank {first.number} of {len(ranks)} failed ({first.process.returncode}):\n{first.said()}"


def _work(given: tuple[str | None, Callable[..., Any], Sequence[Any]], out: Path) -> None:
    backend, work, arguments = given
    if backend is not None:
        import torch.distributed as dist

        dist.init_process_group(backend)
    result = work(*arguments)
    if backend is not None:
        dist.destroy_process_group()
    out.write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    if sys.argv[1] == "--fork":
        leave(_fork(Path(sys.argv[2]), int(sys.argv[3])))
    _work(pickle.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2]))
    leave(0)
