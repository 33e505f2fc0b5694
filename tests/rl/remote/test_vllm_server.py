"""vLLM as a remote engine: the order of its operations, and generation with token ids."""

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from engine.vllm.fakes import Fake, make_fake
from rondo.base.errors import ConfigError
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.schedule.intake import InputProcessor
from rondo.engine.vllm.backend import VllmRequest
from rondo.engine.vllm.child.process import VllmProcess
from rondo.engine.vllm.client import AsyncVllmClient
from rondo.engine.vllm.options import environment
from rondo.rl.remote.servers import VllmServer


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Fake, VllmProcess]]:
    with tempfile.TemporaryDirectory() as home:  # a short path: the address of a socket has to fit
        monkeypatch.setenv("RONDO_HOME", home)
        fake = make_fake(tmp_path)
        process = VllmProcess(fake.python, partial(environment, EngineConfig()), 60)
        try:
            process.start(["--model", "x"], threading.Event())
            yield fake, process
        finally:
            process.stop()


def test_a_push_pauses_updates_and_resumes_and_tokens_are_generated(
    started: tuple[Fake, VllmProcess],
) -> None:
    fake, process = started

    async def work() -> list[int]:
        async with AsyncVllmClient(process.socket) as client:
            server = VllmServer(client, {"id": "policy", "max_model_len": 64})  # type: ignore[arg-type]
            await server.push({"path": "/weights"}, 3, waits=True)
            sampling = SamplingParams(max_tokens=4, temperature=1.0, detokenize=False)
            request = GenerateRequest("a", [9], sampling)
            first = InputProcessor(EngineConfig(), 64, 100, ()).samples(request, [9], None, 0.0)[0]
            pieces = [piece async for piece in server.generate(VllmRequest(request, first, "0", None))]
            return [token for piece in pieces for token in piece.tokens]

    assert asyncio.run(asyncio.wait_for(work(), 100)) == [5] * 4
    assert fake.asked()[1:] == [
        ["/pause?mode=wait&clear_cache=false", {}],
        ["/start_weight_update", {}],
        ["/update_weights", {"update_info": {"path": "/weights", "version": 3}}],
        ["/finish_weight_update", {"weight_version": "3"}],
        ["/resume", {}],
    ]


def test_running_requests_are_aborted_but_not_recomputed(started: tuple[Fake, VllmProcess]) -> None:
    fake, process = started

    async def work() -> None:
        async with AsyncVllmClient(process.socket) as client:
            server = VllmServer(client, {"id": "policy", "max_model_len": 64})  # type: ignore[arg-type]
            await server.push({"path": "/weights"}, 3, False, "abort")
            with pytest.raises(ConfigError, match="to retain or abort"):
                await server.check("recompute")

    asyncio.run(asyncio.wait_for(work(), 100))
    assert fake.asked()[1][0] == "/pause?mode=abort&clear_cache=false"
