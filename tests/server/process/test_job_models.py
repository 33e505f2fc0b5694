"""What a training job has left is served under the job's hash."""

import shutil
from pathlib import Path

import pytest

import rondo
from rondo.base.errors import NotFound
from server.running import start

HASH = "71906f7adb36" + "0" * 52


def test_a_jobs_hash_is_a_model(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    job = tmp_path / "jobs" / HASH
    shutil.copytree(model_folder, job / "export")
    (job / "spec.json").write_text("{}")
    for running in start("71906f7adb36"):
        with rondo.Client(running.url) as client:
            assert client.models() == [HASH]
            answers = [client.complete("abc", model=name, seed=1) for name in ("71906f7adb36", HASH)]
            assert answers[0]["choices"] == answers[1]["choices"]
            assert {answer["model"] for answer in answers} == {HASH}
            with pytest.raises(NotFound):
                client.complete("abc", model="export")
