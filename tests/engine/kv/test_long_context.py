"""A long prompt needs its keys and values, and little more: the scores of one chunk alone would be 256 MiB."""

import pytest

from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.ops.native.build.build import compiler
from support.memory import peak_of
from support.tiny import tiny_model

LONG = 8_192
WINDOWS = {
    "all of it": {},
    "a window in three of four layers": {
        "num_hidden_layers": 4,
        "use_sliding_window": True,
        "sliding_window": 512,
        "max_window_layers": 1,
    },
}

pytestmark = pytest.mark.skipif(
    not compiler(), reason="no C compiler here: install gcc to test what the compiled attention needs"
)


def answer(core: EngineCore, length: int) -> None:
    ids = [3 + i * 7919 % 250 for i in range(length)]
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True, detokenize=False)
    [request] = core.add(GenerateRequest(str(length), ids, params))
    while core.has_work:
        core.step()
    assert len(request.tokens) == length + 2


@pytest.mark.parametrize("seen", WINDOWS)
def test_prefill_needs_memory_for_a_chunk(seen: str) -> None:
    model = tiny_model(max_position_embeddings=2 * LONG, **WINDOWS[seen])
    core = EngineCore(model, EngineConfig(max_num_seqs=2, max_model_len=LONG + 16, prefix_cache=False))
    answer(core, 64)
    kept = sum(2 * layer.keys.data.nbytes for layer in core.runner.cache.layers)
    assert peak_of(lambda: answer(core, LONG)) < kept + (16 << 20)
    core.close()
