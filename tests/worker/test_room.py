"""Number of requests that fit into an engine, from `/load` and from metrics."""

import asyncio
import json

import pytest

from rondo.worker.engines import EngineGone, EngineReply
from rondo.worker.room import FIRST_TOKENS, SPARE, EngineLoad, Room

VLLM = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0
"""


class FakeEngine:
    """Responses by path; 404 for others."""

    def __init__(self, **bodies: bytes) -> None:
        self.bodies, self.gone = bodies, False

    async def call(self, method: str, path: str, body: bytes = b"", request_id: str = "") -> EngineReply:
        if self.gone:
            raise EngineGone("gone", begun=False)
        found = self.bodies.get(path.lstrip("/"))
        return EngineReply(404, b"") if found is None else EngineReply(200, found)

    async def close(self) -> None: ...


def load(running: int, waiting: int, free: int | None) -> bytes:
    return json.dumps({"running": running, "waiting": waiting, "kv_free_tokens": free}).encode()


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ({"load": load(1, 2, 300)}, EngineLoad(1, 2, 300)),
        ({"load": load(1, 2, None)}, EngineLoad(1, 2, None)),
        ({"load": load(1, 2, None), "metrics": VLLM}, EngineLoad(3, 4, 12000)),
        ({"metrics": VLLM}, EngineLoad(3, 4, 12000)),
        ({"metrics": VLLM.replace(b"num_gpu_blocks", b"other")}, None),
        ({"load": b"[]", "metrics": b"\xff"}, None),
        ({}, None),
    ],
)
def test_the_load_of_engines(bodies: dict[str, bytes], expected: EngineLoad | None) -> None:
    assert asyncio.run(Room(FakeEngine(**bodies), 100).load()) == expected


@pytest.mark.parametrize(
    ("body", "held", "expected"),
    [
        (load(0, 0, int(10 * FIRST_TOKENS)), 0, 10 + SPARE),
        (load(0, 0, int(10 * FIRST_TOKENS)), 6, 10 + SPARE - 6),  # they have not reached the engine yet
        (load(6, 0, int(10 * FIRST_TOKENS)), 6, 10 + SPARE),
        (load(4, 12, 0), 16, 0),
        (load(0, 0, 10**9), 30, 70),
        (load(0, 0, 10**9), 100, 0),
        (load(90, 0, None), 90, 10),
        (load(90, SPARE + 15, None), 90, 0),
    ],
)
def test_as_many_requests_as_fit(body: bytes, held: int, expected: int) -> None:
    assert asyncio.run(Room(FakeEngine(load=body), 100).free(held)) == expected


def test_the_size_of_a_request_follows_those_that_ended() -> None:
    room = Room(FakeEngine(load=load(0, 0, 10_000)), 1000)
    for _ in range(200):
        room.note(100)
    assert asyncio.run(room.free(0)) == pytest.approx(100 + SPARE, abs=2)


def test_an_engine_that_is_away_has_room_for_the_setting() -> None:
    engine = FakeEngine()
    engine.gone = True
    assert asyncio.run(Room(engine, 7).free(2)) == 5
