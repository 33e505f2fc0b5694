"""vLLM's process where it does not start: each time a clear error, and nothing is left."""

import sys
import threading
import time

import pytest

from rondo.base.errors import ConfigError, RondoError, Unavailable
from rondo.base.telemetry.activity import display
from rondo.engine.vllm.child.process import VllmProcess, first_error
from support.waiting import scaled


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))


def python(tmp_path, script):
    """A Python of another environment, which does `script` whatever it is asked to run."""
    file = tmp_path / "python"
    file.write_text(f"#!{sys.executable}\n{script}\n")
    file.chmod(0o755)
    return str(file)


def start(path, seconds=30.0, stopped=None):
    process = VllmProcess(path, lambda folder: {"PATH": "/bin", "PYTHONPATH": str(folder.plugins)}, seconds)
    try:
        process.start([], stopped or threading.Event())
    finally:
        process.stop()


def test_an_environment_without_vllm():
    with pytest.raises(ConfigError, match=f"not installed for {sys.executable}") as refused:
        start(None)
    assert refused.value.param == "vllm.python"


def test_no_such_python(tmp_path):
    with pytest.raises(ConfigError, match="cannot be started: No such file") as refused:
        start(str(tmp_path / "none"))
    assert refused.value.param == "vllm.python"


def test_what_it_says_when_it_ends(tmp_path):
    script = (
        "import sys; sys.exit('Traceback ...\\nValueError: no such dtype\\nRuntimeError: Engine core failed')"
    )
    with pytest.raises(ConfigError, match=r"ended with exit code 1: ValueError: no such dtype$"):
        start(python(tmp_path, script))
    warned = "(APIServer) WARNING 11-21 23:40:42 [cpu.py:1] This can cause an OSError: Too many open files.\n"
    assert first_error(f"{warned}ValueError: no such dtype") == "ValueError: no such dtype"
    assert first_error("") == "it said nothing"
    assert first_error("api_server.py: error: unrecognized arguments: --x\n").endswith("arguments: --x")


def test_the_start_is_an_activity_for_the_spinner(tmp_path):
    seen = []
    with display(seen.append), pytest.raises(RondoError):
        start(python(tmp_path, "import sys; sys.exit('RuntimeError: no')"))
    assert "starting vLLM" in seen
    assert seen[-1] is None


def test_one_that_never_answers(tmp_path):
    with pytest.raises(RondoError, match=r"does not answer after 3 s \(engine.vllm.start_seconds\): loading"):
        start(python(tmp_path, "import time\nprint('loading', flush=True)\ntime.sleep(60)"), 3)


def test_stopped_while_it_starts(tmp_path):
    stopped = threading.Event()
    threading.Timer(0.3, stopped.set).start()
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="stopped while vLLM started"):
        start(python(tmp_path, "import time; time.sleep(60)"), stopped=stopped)
    assert time.monotonic() - begun < scaled(10)
