"""ScalarLM's Python client and command line from PyPI, unmodified, against a gateway and an engine with a worker."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.stub import RunningGateway, gateway_of
from support.peers import peer_python, run_peer
from support.served import Served, write_model
from support.waiting import wait_until

pytestmark = pytest.mark.real

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder: Path = tmp_path_factory.mktemp("scalarlm")
    served = Served(write_model(folder / "tiny"), folder / "engine")
    with gateway_of([served.url], folder) as running:
        served._argv.append(f"--worker.gateway={running.url}")
        served.start().wait()
        try:
            wait_until(lambda: httpx.get(f"{running.url}/v1/queue/workers").json()["data"])
            wait_until(lambda: httpx.get(f"{running.url}/ready").is_success)
            yield running
        finally:
            served.kill()


def test_the_client_generates_and_raises(gateway: RunningGateway) -> None:
    found = json.loads(run_peer("scalarlm", HERE / "_scalarlm.py", gateway.url))
    assert len(found["few"]) == 3
    assert found["few"][0] == found["few"][2] == found["alone"][0], "greedy by default, in order"
    assert len(found["many"]) == 150
    assert found["many"][:3] == found["some"], "an upload is answered as a call"
    assert [len(each) for each in found["at_once"]] == [1] * 8
    assert len(found["parts"]) == 2
    assert "404" in found["unknown"]
    assert "missing" in found["unknown"]
    assert "tokens" in found["long"]
    assert "tokens" in found["long_many"]
    assert found["metrics"]["queue_depth"] == 0
    assert found["metrics"]["flop/s"] > 0
    assert found["health"]["status"] == "ok"
    assert found["cleared"] == {"cancelled": 0}


def test_the_command_line_shows_statistics_and_clears_the_queue(gateway: RunningGateway) -> None:
    command = peer_python("scalarlm").with_name("scalarlm")
    header, _, row = run_peer("scalarlm", command, "stats", SCALARLM_API_URL=gateway.url).splitlines()
    assert [word.strip() for word in header.split("|")][:3] == ["queue_depth", "requests", "tokens"]
    assert "FLOPS" in row
    assert run_peer("scalarlm", command, "clear_queue", SCALARLM_API_URL=gateway.url) == ""
