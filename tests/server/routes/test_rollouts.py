"""The rollouts of RL jobs over HTTP: for the operator alone, in OpenAI's shape of a list."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rl._rollouts import asked, equally, judged, said
from rondo import Client
from rondo.base.errors import InvalidRequest, NotFound
from rondo.jobs.job import Job
from rondo.rl.record.store import FOLDER, RolloutStore
from rondo.server.config import ServerConfig
from server.running import Running, start


@pytest.fixture(scope="module")
def operated(model_folder: Path) -> Iterator[Running]:
    yield from start(model_folder, config=ServerConfig(port=0, api_key="user", admin_key="operator"))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    job = Job.of({"kind": "rl"})
    store = RolloutStore(job.path / FOLDER, 10, 1 << 30)
    for step in (1, 2):
        groups = [
            asked("abc", [said("c" * 500, judged(0.25, correct=0.0)), said("cba", judged(1.0, correct=1.0))])
        ]
        store.put(step, groups, equally(groups))
    return job


@pytest.fixture
def client(operated: Running) -> Iterator[Client]:
    with Client(operated.url, admin_key="operator") as client:
        yield client


def test_pages_follow_one_another(client: Client, job: Job) -> None:
    first = client.rollouts(job.short, limit=3)
    assert [each["id"] for each in first["data"]] == ["2-0-0", "2-0-1", "1-0-0"]
    assert (first["object"], first["first_id"], first["last_id"], first["has_more"]) == (
        "list",
        "2-0-0",
        "1-0-0",
        True,
    )
    second = client.rollouts(job.short, limit=3, after=first["last_id"])
    assert [each["id"] for each in second["data"]] == ["1-0-1"]
    assert second["has_more"] is False
    listed = first["data"][0]
    assert listed["object"] == "rl.rollout"
    assert (listed["reward"], listed["parts"], listed["prompt"]) == (0.25, {"correct": 0.0}, "abc")
    assert listed["text"] == "c" * 400 + "..."


def test_they_are_looked_for_sorted_and_shown(client: Client, job: Job) -> None:
    found = client.rollouts(job.name, ["reward>0.5", "text~CB"], step=1)
    assert [each["id"] for each in found["data"]] == ["1-0-1"]
    found = client.rollouts(job.name, sort="tokens", order="asc", limit=1)
    assert found["data"][0]["id"] == "2-0-1"
    whole = client.rollout(job.name, "1-0-0")
    assert (whole["text"], whole["messages"][0]["content"]) == ("c" * 500, "abc")
    [piece] = whole["pieces"]
    assert piece["token_ids"] == [99] * 500
    assert piece["advantages"] == [0.5] * 500


def test_what_cannot_be_is_named(client: Client, job: Job, operated: Running) -> None:
    with pytest.raises(InvalidRequest, match="rollouts have no 'fromat'"):
        client.rollouts(job.name, ["fromat=1"])
    with pytest.raises(NotFound, match="There is no job 'abcdef'"):
        client.rollouts("abcdef")
    with pytest.raises(NotFound, match="steps 1 to 2 are kept"):
        client.rollout(job.name, "5-0-0")
    path = f"{operated.url}/v1/rl/jobs/{job.name}/rollouts"
    headers = {"X-Admin-Key": "operator"}
    for query, param in (
        ("limit=101", "limit"),
        ("order=up", "order"),
        ("step=-1", "step"),
        ("color=red", "color"),
    ):
        refused = httpx.get(f"{path}?{query}", headers=headers)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_they_are_the_operators_alone(job: Job, operated: Running) -> None:
    path = f"{operated.url}/v1/rl/jobs/{job.name}/rollouts"
    for key in ({}, {"Authorization": "Bearer user"}):
        assert httpx.get(path, headers=key).status_code == 401
        assert httpx.get(f"{path}/1-0-0", headers=key).status_code == 401
    assert httpx.get(path, headers={"Authorization": "Bearer operator"}).status_code == 200
