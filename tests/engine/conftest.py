from collections.abc import Iterator

import pytest

from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.models import Decoder, new
from support.engines import Pace, threaded

TINY = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "initializer_range": 0.5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="session")
def tiny() -> Decoder:
    return new(TINY, seed=0).eval()


@pytest.fixture
def pace(core: EngineCore) -> Pace:
    """Of the steps of a file's own `core`, in whichever loop."""
    paced = core.runner.execute = Pace(core.runner.execute)  # type: ignore[method-assign]
    return paced


@pytest.fixture
def engine(core: EngineCore, pace: Pace) -> Iterator[AsyncEngine]:
    with threaded(core) as engine:
        yield engine
        pace.hurry()
