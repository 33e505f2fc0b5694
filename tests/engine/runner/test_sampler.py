import numpy as np
import pytest
import torch

from rondo.client.types import SamplingParams
from rondo.engine.runner import sampler as module
from rondo.engine.runner.sampler import (
    EDITS,
    LOGPROBS,
    MASKED,
    Sampler,
    SamplingBatch,
    draw_filtered,
    edit_row,
)
from rondo.engine.schedule.randomness import derive, uniforms
from rondo.engine.schedule.request import Request
from rondo.ops import draw


def test_uniforms_are_uniform_and_independent_of_the_batch():
    seeds = np.repeat(np.arange(100, dtype=np.uint64), 200)
    positions = np.tile(np.arange(200, dtype=np.uint64), 100)
    values = uniforms(seeds, positions)
    assert values.min() >= 0
    assert values.max() < 1
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-squared, 19 degrees of freedom: p < 0.001
    grid = values.reshape(100, 200)
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.03
    assert uniforms(seeds[7:8], positions[7:8])[0] == values[7]
    assert len({derive(5, i) for i in range(1000)}) == 1000


def test_draws_follow_the_distribution():
    probs = torch.tensor([0.1, 0.0, 0.6, 0.3, 0.0])
    draws = torch.linspace(0, 1 - 2**-24, 10001)
    tokens = draw(probs.expand(len(draws), -1), draws)
    shares = torch.bincount(tokens, minlength=5) / len(draws)
    assert torch.allclose(shares, probs, atol=1e-3)
    assert shares[1] == shares[4] == 0


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ((0, 1.0, 0.0), {0, 1, 2, 3}),
        ((2, 1.0, 0.0), {2, 3}),
        ((1, 0.1, 0.5), {2}),
        ((0, 0.5, 0.0), {2}),
        ((0, 0.6, 0.0), {2, 3}),
        ((3, 0.84, 0.0), {2, 3}),
        ((0, 1.0, 0.3), {2, 3}),
    ],
)
def test_filters_keep_what_they_should(limits, kept):
    probs = torch.tensor([0.05, 0.15, 0.55, 0.25])
    draws = torch.linspace(0, 1 - 2**-24, 5001)
    top_k, top_p, min_p = (torch.tensor([value]).expand(len(draws)) for value in limits)
    tokens = draw_filtered(probs.expand(len(draws), -1), draws, top_k, top_p, min_p)
    assert set(tokens.tolist()) == kept
    shares = torch.bincount(tokens, minlength=4) / len(draws)
    want = torch.tensor([p if i in kept else 0.0 for i, p in enumerate(probs.tolist())])
    assert torch.allclose(shares, want / want.sum(), atol=2e-3)


def test_a_mixed_batch_gives_each_request_its_own():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 50, generator=generator)
    params = [
        SamplingParams(temperature=0),
        SamplingParams(seed=1),
        SamplingParams(seed=2, top_k=3),
        SamplingParams(seed=3, temperature=0.3, logprobs=2),
        SamplingParams(seed=4, logit_bias={7: 100.0}),
        SamplingParams(seed=5, top_p=0.5, min_p=0.1, logprobs=0, logprobs_mode="raw"),
    ]
    requests = [Request(str(i), 0, [1, 2], p, 10, i, seed=p.seed or 0) for i, p in enumerate(params)]

    def sample(which):
        sampler = Sampler(6)
        for row, i in enumerate(which):
            requests[i].row = row
            sampler.admit(requests[i])
        return sampler.sample(logits[which], sampler.batch([requests[i] for i in which])).read()

    together = sample(list(range(6)))
    for i in range(6):
        alone = sample([i])
        assert alone.tokens[0] == together.tokens[i]
        if params[i].logprobs is not None:
            assert alone.logprobs[0] == together.logprobs[i]
            assert alone.top.get(0) == together.top.get(i)
    assert together.tokens[0] == logits[0].argmax()
    assert together.tokens[4] == 7


def test_penalties_are_openais_and_the_repetition_penalty_is_hugging_faces():
    params = SamplingParams(
        presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0, min_tokens=9
    )
    request = Request("r", 0, [0, 1], params, 10, 0)
    request.tokens += [2, 2, 3]
    logits = torch.tensor([1.0, -1.0, 2.0, 2.0, 2.0, 2.0])
    edit_row(logits, request, eos_ids=(5,))
    assert logits.tolist() == [0.5, -2.0, 1.0 - 0.5 - 0.5, 1.0 - 0.5 - 0.25, 2.0, -float("inf")]


@pytest.mark.parametrize("scored", [False, True])
def test_only_rows_with_a_grammar_are_masked(monkeypatch, scored):
    """Whoever else is in the batch costs nothing; log-probabilities are those of the logits as they were."""
    rows, vocab = 6, 70
    requests = [Request(str(i), 0, [1], SamplingParams(logit_bias={5: 50.0}), 10, i) for i in range(rows)]
    needs = np.zeros(rows, dtype=np.int64)
    needs[[1, 4]] |= MASKED
    needs[3] |= EDITS
    if scored:
        needs[0] |= LOGPROBS
    zeros = np.zeros(rows, dtype=np.uint64)
    wanted = int(np.bitwise_or.reduce(needs))
    batch = SamplingBatch(requests, None, needs, wanted, np.ones(rows, np.float32), (), zeros, zeros)
    masks = torch.full((rows, 3), -1, dtype=torch.int32)
    masks[1], masks[4] = 0b101, 0
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0))
    before, seen = logits.clone(), []
    masked = module.masked
    monkeypatch.setattr(module, "masked", lambda some, bits: seen.append(len(some)) or masked(some, bits))
    edited = Sampler(rows, (), vocab)._edit(logits, batch, masks)
    assert seen == [1, 1]
    want = masked(before, masks)
    want[3, 5] += 50.0
    assert torch.equal(edited, want)
    assert torch.equal(logits, before) == scored
