"""The whole engine over Triton's kernels, as on a GPU: on a CPU they are interpreted, in a process of their own that
`make test-real` starts (`tests/ops/triton/test_triton.py` says how)."""

import importlib.util
import os

import pytest
import torch

from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.runner.graphs import DecodeGraphs
from rondo.ops.dispatch import use_reference
from support.tiny import tiny_model

GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and os.environ.get("RONDO_NATIVE") == "0"
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="needs Triton: pip install triton, or make test-real",
    ),
    pytest.mark.skipif(
        not GPU and not INTERPRETED,
        reason="needs a CUDA device, or the interpreter: TRITON_INTERPRET=1 RONDO_NATIVE=0 (make test-real)",
    ),
]
PROMPTS = [[5, 6, 7], [9, 8] * 10, [3, 1, 4, 1, 5]]
GREEDY = SamplingParams(temperature=0, max_tokens=5, logprobs=0, detokenize=False)


def engine(**changes) -> LLM:
    model = tiny_model(use_sliding_window=True, sliding_window=8, max_window_layers=1)
    config = EngineConfig(
        max_num_seqs=3,
        block_size=4,
        max_model_len=64,
        max_step_tokens=16,
        device="cuda" if GPU else "cpu",
        **changes,
    )
    return LLM(model.to("cuda" if GPU else "cpu"), config=config)


def answers(llm: LLM) -> tuple[list[list[int]], torch.Tensor]:
    """Prompts are cut, and some are computed beside others' decodes."""
    outputs = [output.outputs[0] for output in llm.generate(PROMPTS, GREEDY)]
    return [list(each.token_ids) for each in outputs], torch.tensor([list(each.logprobs) for each in outputs])


@pytest.fixture(scope="module")
def expected():
    with use_reference():
        return answers(engine())


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_answers_are_the_references(expected, kv_dtype):
    llm = engine(kv_dtype=kv_dtype)
    tokens, logprobs = answers(llm)
    if kv_dtype == "auto":
        assert tokens == expected[0]
        torch.testing.assert_close(logprobs, expected[1], rtol=1e-4, atol=1e-4)
    else:
        assert len(tokens) == len(PROMPTS)


def test_decodes_from_graphs_are_the_same(expected):
    """Three requests in a graph of four rows; replayed, on a CPU, by computing anew."""
    llm = engine(cuda_graphs=True)
    runner = llm.core.runner
    if not GPU:
        runner.graphs = DecodeGraphs(runner.model, runner.cache, 4, 64, lambda compute: compute)
    tokens, logprobs = answers(llm)
    assert tokens == expected[0]
    torch.testing.assert_close(logprobs, expected[1], rtol=1e-4, atol=1e-4)
    assert runner.graphs._recorded
