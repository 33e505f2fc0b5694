"""Connection to the engines of `rl.engine.url`, as one engine pool with weight push."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.engine.config import EngineConfig
from rondo.engine.schedule.intake import InputProcessor
from rondo.models import Decoder
from rondo.rl.config import RlConfig
from rondo.rl.remote.engine import RemoteEngine
from rondo.rl.remote.engine_pool import EnginePool
from rondo.rl.remote.push import RemotePush
from rondo.rl.remote.servers import detect_server
from rondo.rl.rollout.async_collector import EventLoop
from rondo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from rondo.rl.remote.rank_policy import RankPolicy


def connect(
    model: Decoder,
    tokenizer: Tokenizer,
    config: RlConfig,
    settings: EngineConfig,
    events: EventLoop,
    ranks: RankPolicy | None = None,
) -> tuple[EnginePool, RemotePush]:
    """Connect to the engines and push the model's weights, or those of all ranks."""
    pool = events.do(_connect(model, tokenizer, config, settings))
    name = Path(config.model).name or "policy"
    return pool, RemotePush(model, pool, events, config.engine, name, ranks)


async def _connect(
    model: Decoder, tokenizer: Tokenizer, config: RlConfig, settings: EngineConfig
) -> EnginePool:
    """The pool of the configured engines, after a check of each engine's tokenizer."""
    servers = await asyncio.gather(*map(detect_server, config.engine.url))
    longest = min(model.config.max_positions, *(server.max_model_len for server in servers))
    vocab = model.config.vocab_size
    ends = tuple(token for token in tokenizer.eos_ids or model.config.eos_ids if 0 <= token < vocab)
    intake = InputProcessor(settings, longest, vocab, ends)
    requests = config.engine.weights.requests
    engines = [RemoteEngine(server, intake, tokenizer, requests) for server in servers]
    await asyncio.gather(*(engine.check() for engine in engines))
    return EnginePool(engines, longest, config.engine.wait, waits=config.mode == "one_step_off")
