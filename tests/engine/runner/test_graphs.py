"""Decode steps from graphs: which sizes there are, what a graph reads, and when it is recorded anew. Without a CUDA
device a stand-in computes anew at each replay, from the graph's own inputs."""

import dataclasses

import pytest
import torch

from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.kv.cache import KVCache
from rondo.engine.runner import graphs
from rondo.engine.runner.attend import Paged, StepLayout
from rondo.engine.runner.graphs import DecodeGraphs, GraphInputs, fitting, reaches, row_counts, why_not
from rondo.ops import DecodeStep
from rondo.ops.dispatch import use_reference
from support.tiny import tiny_model

BLOCK = 4


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (64, [1, 2, 4, 8, 16, 32, 64])]
)
def test_counts_of_rows(most, counts):
    assert row_counts(most) == counts
    assert [fitting(counts, rows) for rows in range(1, most + 1)] == [
        min(count for count in counts if count >= rows) for rows in range(1, most + 1)
    ]


@pytest.mark.parametrize(
    ("longest", "found"),
    [(10, [10]), (1024, [1024]), (1025, [1024, 1025]), (40960, [1024, 4096, 16384, 40960])],
)
def test_reaches(longest, found):
    assert reaches(longest) == found


def layout(*lengths: int, first: int = 0) -> StepLayout:
    """One token each of requests whose blocks are theirs alone."""
    ends = torch.tensor(lengths)
    pages = -(-max(lengths) // BLOCK)
    tables = first + torch.arange(len(lengths) * pages).view(len(lengths), pages)
    slots = tables.gather(1, (ends[:, None] - 1) // BLOCK)[:, 0] * BLOCK + (ends - 1) % BLOCK
    return StepLayout(ends, DecodeStep(tables, ends, slots, max(lengths)), slots[:0])


def test_rows_that_are_left_over_have_no_past_and_no_slot():
    inputs = GraphInputs.of(4, 32, 1, BLOCK, torch.device("cpu"))
    inputs.fill(torch.tensor([1, 2, 3, 4]), torch.tensor([8, 6, 4, 2]), [layout(9, 7, 5, 3)])
    inputs.fill(torch.tensor([7, 8]), torch.tensor([16, 4]), [layout(17, 5, first=3)])
    (own,) = inputs.layouts
    given = layout(17, 5, first=3).decodes
    assert inputs.tokens[:2].tolist() == [7, 8]
    assert inputs.positions[:2].tolist() == [16, 4]
    assert own.decodes.lengths.tolist() == [17, 5, 0, 0]
    assert own.decodes.slots.tolist() == [*given.slots.tolist(), -1, -1]
    assert torch.equal(own.decodes.tables[:2, :5], given.tables)
    assert own.decodes.longest == 32


class Graphs:
    """Two caches alike: one that graphs write to, and one that steps write to without."""

    def __init__(self) -> None:
        self.model = tiny_model().eval()
        specs = self.model.attention_specs()
        cpu = torch.device("cpu")
        self.cache, self.plain = (KVCache(specs, [32], BLOCK, torch.float32, cpu) for _ in range(2))
        self.recorded = 0
        self.graphs = DecodeGraphs(self.model, self.cache, 4, 64, self.record)

    def record(self, compute):
        self.recorded += 1
        return compute

    def step(self, *lengths: int) -> torch.Tensor:
        given = torch.arange(len(lengths)), torch.tensor(lengths) - 1, [layout(*lengths)]
        assert self.graphs.can(given[2])
        return self.graphs.trunk(*given)


@pytest.fixture
def full():
    """Rows without a request are for kernels that leave them out: here every step is as large as its graph."""
    with torch.inference_mode():
        yield Graphs()


def test_a_step_is_computed_from_the_graphs_own_inputs(full):
    for lengths in ((3, 5), (4, 6), (9, 2), (7,), (5,)):
        given = torch.arange(len(lengths)), torch.tensor(lengths) - 1
        expected = full.model.trunk(*given, Paged(full.plain, [layout(*lengths)]))
        torch.testing.assert_close(full.step(*lengths), expected, rtol=1e-5, atol=1e-5)
    assert full.recorded == 2


def test_what_has_moved_is_recorded_anew(full):
    full.step(3)
    full.step(4)
    assert full.recorded == 1
    full.model.head.norm.weight.data = full.model.head.norm.weight.data.clone()
    full.step(5)
    assert full.recorded == 2
    full.cache.release()
    full.cache.allocate()
    full.step(6)
    assert full.recorded == 3


def test_steps_that_are_not_one_token_each_are_not_taken(full):
    assert full.graphs.can([layout(3, 5)])
    assert not full.graphs.can([layout(3, 5, 4, 3, 2)])  # more than there may be
    assert not full.graphs.can([layout(65)])
    assert not full.graphs.can([dataclasses.replace(layout(3, 5), related=True)])
    assert not full.graphs.can([dataclasses.replace(layout(3, 5), lengths=torch.ones(7))])
    assert not full.graphs.can([dataclasses.replace(layout(3, 5), decodes=None)])
    handle = full.model.head.norm.register_forward_hook(lambda *args: None)
    assert not full.graphs.can([layout(3, 5)])
    handle.remove()
    assert full.graphs.can([layout(3, 5)])


def test_on_a_cpu_nothing_is_recorded_and_the_log_says_so(monkeypatch):
    said = []
    monkeypatch.setattr(graphs.log, "warning", said.append)
    llm = LLM(tiny_model(), config=EngineConfig(max_num_seqs=2, block_size=BLOCK, cuda_graphs=True))
    assert llm.core.runner.graphs is None
    assert said == ["cuda_graphs is set, but steps are not recorded: the device is cpu"]


def test_why_a_model_is_not_recorded(monkeypatch):
    model = tiny_model()
    cache = KVCache(model.attention_specs(), [4], BLOCK, torch.float32, torch.device("cpu"))
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    monkeypatch.setattr(graphs, "missing", lambda: None)
    assert why_not(model, cache) is None
    with use_reference():
        assert "RONDO_OPS" in why_not(model, cache)
    cache.dtype = torch.float64
    assert "float64" in why_not(model, cache)
    monkeypatch.setattr(graphs, "missing", lambda: "there is no Triton")
    assert why_not(model, cache) == "there is no Triton"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_answers_are_those_without_graphs():
    prompts = [[5, 6, 7], [9] * 20, [3, 1, 4, 1, 5], [2] * 70, [8]]
    greedy = SamplingParams(temperature=0, max_tokens=20, detokenize=False)
    answers = []
    for cuda_graphs in (False, True):
        config = EngineConfig(
            max_num_seqs=4,
            block_size=BLOCK,
            max_model_len=200,
            device="cuda",
            cuda_graphs=cuda_graphs,
        )
        llm = LLM(tiny_model().cuda(), config=config)
        assert (llm.core.runner.graphs is not None) == cuda_graphs
        answers.append([out.outputs[0].token_ids for out in llm.generate(prompts, greedy)])
    assert answers[0] == answers[1]
