import os
import signal
import subprocess
import sys

import pytest

from rondo.base.process import LineWorker, exit_reason, kill, last_line, python_call, start, stop
from support.processes import wait_until_gone

ECHO = [sys.executable, "-c", "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"]
DIES = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(7)"]
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print(child.pid, flush=True)
time.sleep(300)
"""


def test_a_child_has_a_session_of_its_own():
    process = start([sys.executable, "-c", "import os; print(os.getsid(0))"], stdout=subprocess.PIPE)
    output, _ = process.communicate()
    assert int(output) == process.pid != os.getsid(0)


def test_stop_asks_before_it_kills():
    process = start(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(300)"], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    stop(process, 60)
    assert exit_reason(process.returncode) == f"was killed by signal {signal.SIGTERM.value}"
    process.stdout.close()


def test_stop_kills_a_child_that_ignores_it_with_its_own_children():
    process = start([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    grandchild = int(process.stdout.readline())
    stop(process, 0.1)
    assert process.returncode == -signal.SIGKILL
    wait_until_gone([grandchild])
    process.stdout.close()


def test_children_that_outlive_the_child_are_killed():
    process = start(
        [
            sys.executable,
            "-c",
            "import subprocess\nprint(subprocess.Popen(['sleep', '300']).pid, flush=True)",
        ],
        stdout=subprocess.PIPE,
    )
    grandchild = int(process.stdout.readline())
    process.wait()
    kill(process)
    wait_until_gone([grandchild])
    process.stdout.close()


def test_a_child_ends_with_its_killed_parent(tmp_path):
    """Where the parent is killed by -9, no code of it runs."""
    parent = start(
        [
            sys.executable,
            "-c",
            "from rondo.base.process import start\nimport time\n"
            "print(start(['sleep', '300'], end_with_parent=True).pid, flush=True)\ntime.sleep(300)",
        ],
        stdout=subprocess.PIPE,
    )
    child = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until_gone([child])
    parent.stdout.close()


def test_python_call_finds_the_modules_found_here(tmp_path, monkeypatch):
    (tmp_path / "found_here.py").write_text("def shout(text): print(text.upper())")
    monkeypatch.syspath_prepend(str(tmp_path))
    output = subprocess.run(python_call("found_here:shout", "a b"), capture_output=True, check=True).stdout
    assert output == b"A B\n"


def test_a_line_worker_answers_and_is_replaced_after_it_was_killed():
    worker = LineWorker(ECHO)
    assert worker.ask(b"one\n") == (b"one\n", 0)
    first = worker.pid
    os.kill(first, signal.SIGKILL)
    assert worker.ask(b"lost\n") == (b"", -signal.SIGKILL)
    assert worker.ask(b"two\n") == (b"two\n", 0)
    assert worker.pid != first
    worker.close()
    worker.close()


def test_a_line_worker_returns_the_code_of_a_child_that_ended():
    worker = LineWorker(DIES)
    assert worker.ask(b"question\n") == (b"", 7)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(0, "ended with exit code 0"), (3, "ended with exit code 3"), (-9, "was killed by signal 9")],
)
def test_exit_reason(code, reason):
    assert exit_reason(code) == reason


def test_last_line():
    assert last_line(b"Traceback\nValueError: \xff no\n\n", 12) == "ValueError: "
    assert last_line("", 10) == ""


def test_leave_waits_for_threads_and_handlers_and_flushes_what_was_written():
    code = (
        "import atexit, threading, time\nfrom rondo.base.process import leave\n"
        "class Object:\n    def __del__(self): print('destroyed')\n"
        "kept = Object()\natexit.register(lambda: print('handler'))\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "print('main')\nleave(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (3, ["main", "thread", "handler"])
