"""The second major version of OpenAI's client: fine-tuning, graders and evals."""

import json
import sys
from pathlib import Path

import pytest

from gateway.queue_worker import worker
from gateway.stub import Stub, gateway_of, served
from gateway.test_evals import upper
from gateway.test_fine_tuning import PROGRAM
from rondo.control.jobs.launchers.local import LocalLauncher
from support.peers import run_peer

pytestmark = pytest.mark.real


def test_fine_tuning_graders_and_evals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    (tmp_path / "program.py").write_text(PROGRAM)
    folder = tmp_path / "home" / "jobs" / ("ab" * 32)
    folder.mkdir(parents=True)
    (folder / "go").touch()
    jobs = {"poll_seconds": 0.05}
    with served(Stub(["m"])) as stub, gateway_of([stub.url], tmp_path, jobs=jobs) as gateway:
        launcher = next(iter(gateway.gateway.training.launchers.values()))
        assert isinstance(launcher, LocalLauncher)
        program = str(tmp_path / "program.py")
        launcher.command = lambda spec: [sys.executable, "-S", program, json.dumps(dict(spec.settings))]
        with worker(gateway.store, ["m"], upper):
            script = Path(__file__).with_name("_openai2.py")
            env = {"OPENAI_BASE_URL": gateway.url + "/v1", "OPENAI_API_KEY": "none"}
            found = json.loads(run_peer("openai2", script, **env))
    assert found.pop("version").startswith("2.")
    assert found == {
        "job": ["succeeded", 14, 1],
        "checkpoints": [2],
        "events": ["message", "metrics"],
        "validated": "match",
        "reward": 1.0,
        "counts": {"total": 2, "passed": 1, "failed": 1, "errored": 0},
        "items": ["pass", "fail"],
        "listed": True,
        "deleted": True,
    }
