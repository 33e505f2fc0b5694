"""Supervised processes: restarts with back-off, permanent failures, and their end."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rondo.base.errors import Conflict, NotFound
from rondo.supervisor.config import UpConfig
from rondo.supervisor.logs import log_file
from rondo.supervisor.part import Part
from rondo.supervisor.state import running_state, state_file, stop_running
from rondo.supervisor.supervisor import Supervisor
from support.processes import alive
from support.waiting import wait_until

QUICK = UpConfig(restart_seconds=0.01, longest_restart_seconds=0.05, stop_seconds=30)
SLEEP = "import time; print('started', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    return tmp_path


def part(code: str, name: str = "part") -> Part:
    return Part(name, [sys.executable, "-c", code], dict(os.environ))


def test_a_killed_part_starts_again_and_its_log_goes_on() -> None:
    one = part(SLEEP)
    one.begin(QUICK, lambda: None)
    wait_until(lambda: log_file("part").is_file() and b"started" in log_file("part").read_bytes())
    pid = one.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: one.pid not in (None, pid))
    wait_until(lambda: log_file("part").read_bytes().count(b"started") == 2)
    assert (one.restarts, one.ended) == (1, "was killed by signal 9")
    one.end(30)
    assert (one.state, one.pid) == ("stopped", None)


def test_a_part_goes_on_while_its_log_cannot_be_written(tmp_path: Path) -> None:
    log_file("part").parent.mkdir(parents=True)
    log_file("part").symlink_to("/dev/full")
    done = tmp_path / "done"
    one = part(f"for _ in range(2000): print('x' * 999, flush=True)\nopen({str(done)!r}, 'w'); {SLEEP}")
    one.begin(QUICK, lambda: None)
    wait_until(done.exists)
    assert one.state == "running"
    one.end(30)


def test_a_part_with_wrong_settings_is_not_started_again() -> None:
    one = part("import sys; sys.exit(2)")
    one.begin(QUICK, lambda: None)
    wait_until(lambda: one.state == "failed")
    assert one.restarts == 0
    one.end(30)
    assert one.state == "failed"


def test_what_a_part_started_ends_with_it() -> None:
    one = part(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    one.begin(QUICK, lambda: None)
    wait_until(lambda: log_file("part").is_file() and log_file("part").read_bytes().endswith(b"\n"))
    child = int(log_file("part").read_bytes())
    one.end(30)
    wait_until(lambda: not alive(child))


def test_a_part_that_ignores_the_signal_is_killed() -> None:
    one = part(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}")
    one.begin(QUICK, lambda: None)
    wait_until(lambda: log_file("part").is_file() and log_file("part").read_bytes())
    one.end(0.1)
    assert one.state == "stopped"


def test_parts_stop_in_order_and_the_state_is_shown_to_others() -> None:
    ended: list[str] = []
    parts = [part(SLEEP, name) for name in ("gateway", "engine-1", "engine-2")]
    for each in parts:
        each.end = _noted(each, ended)  # type: ignore[method-assign]
    supervisor = Supervisor(parts, QUICK, "http://there")
    seen: list[object] = []

    def look() -> None:
        wait_until(lambda: all(each.pid for each in parts))
        state = running_state()
        assert state is not None
        seen.append([each["name"] for each in state["parts"]])
        with pytest.raises(Conflict, match="running already at http://there"):
            Supervisor([], QUICK, "").run()
        os.kill(os.getpid(), signal.SIGTERM)

    supervisor.run(threading.Thread(target=look, daemon=True).start)
    assert seen == [["gateway", "engine-1", "engine-2"]]
    assert ended[0] == "gateway"
    assert sorted(ended[1:]) == ["engine-1", "engine-2"]
    assert running_state() is None
    with pytest.raises(NotFound, match="Nothing that `rondo up` started"):
        stop_running(1)


def test_the_state_file_has_the_latest_state_when_parts_change_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first writer is held up after it has read the state."""
    one, read, go_on = part(SLEEP), threading.Event(), threading.Event()
    supervisor, shown = Supervisor([one], QUICK, ""), Part.as_dict

    def slow(part: Part) -> dict[str, object]:
        state = shown(part)
        if not read.is_set():
            read.set()
            go_on.wait(60)
        return state

    monkeypatch.setattr(Part, "as_dict", slow)
    first, second = (threading.Thread(target=supervisor._changed) for _ in range(2))
    first.start()
    assert read.wait(60)
    one.state = "running"
    second.start()
    second.join(0.2)
    go_on.set()
    for thread in (first, second):
        thread.join(60)
    (written,) = json.loads(state_file().read_text())["parts"]
    assert written["state"] == "running"


def _noted(one: Part, ended: list[str]):
    end = one.end

    def noted(seconds: float) -> None:
        end(seconds)
        ended.append(one.name)

    return noted


def test_a_killed_supervisor_takes_its_parts_along(tmp_path: Path) -> None:
    code = (
        "import sys, json\n"
        "sys.path[:] = json.loads(sys.argv[1])\n"
        "import supervisor.test_part as here\n"
        "here.Supervisor([here.part(here.SLEEP)], here.QUICK, '').run()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps([*sys.path, str(Path(__file__).parents[1])])]
    )
    wait_until(lambda: (state := running_state()) and state["parts"] and state["parts"][0]["pid"])
    state = running_state()
    assert state is not None
    pid = state["parts"][0]["pid"]
    process.kill()
    process.wait()
    wait_until(lambda: not alive(pid))
    assert running_state() is None
