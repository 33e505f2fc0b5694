"""ScalarLM's Python client and command line from PyPI, unmodified, against `rondo up`: the closed loop of training and
asking, uploads in pieces, control."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.home import own_home
from support.peers import peer_python, run_peer
from support.served import write_model
from support.up import Up, running_up
from support.waiting import scaled

pytestmark = pytest.mark.real

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = own_home(tmp_path_factory.mktemp("scalarlm") / "home")
    write_model(home / "models" / "toy")
    with running_up(home, "toy", "--gateway.jobs.poll_seconds=0.2") as running:
        yield running


def test_the_client_trains_and_asks_the_model(up: Up, tmp_path: Path) -> None:
    found = json.loads(
        run_peer("scalarlm", HERE / "_scalarlm_training.py", up.url, "60", seconds=scaled(1500))
    )
    job = found["job"]
    assert (job["job_status"]["status"], job["deployed"]) == ("COMPLETED", True), job
    losses = [row["loss"] for row in job["job_status"]["history"]]
    assert losses[-1] < losses[0] / 2
    assert found["same"], "an upload in pieces is the same job"
    assert len(found["answers"]) == 3
    assert all(found["answers"])
    assert "learning_rate" in found["wrong"]
    assert "max_steps" in found["unknown"]
    assert found["name"] in [each["name"] for each in found["models"]["models"]]
    assert (found["gpus"], found["nodes"]) == (0, 1)
    assert found["cancelled"]["job_status"]["status"] == "CANCELLED"
    assert found["deleted"]["job_status"]["status"] == "CANCELLED"
    _command_line(up, found["name"], tmp_path)


def _command_line(up: Up, name: str, folder: Path) -> None:
    command = peer_python("scalarlm").with_name("scalarlm")

    def rendered(*arguments: str) -> str:
        environment = {"SCALARLM_API_URL": up.url, "MPLBACKEND": "Agg"}
        return run_peer("scalarlm", command, *arguments, **environment)

    assert name in rendered("ls").split()
    assert "COMPLETED" in rendered("ls", "--all", "--limit", "1")
    assert "NODELIST" in rendered("squeue")
    assert "step" in rendered("logs", "--model", name)
