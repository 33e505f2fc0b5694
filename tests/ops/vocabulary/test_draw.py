"""Drawing tokens, compiled and by formula."""

import math

import pytest
import torch

from rondo.ops import NO_TOKEN, choose_tokens, token_logprobs
from rondo.ops.dispatch import use_reference
from rondo.ops.native.build.build import compiler

pytestmark = pytest.mark.skipif(
    not compiler(), reason="no C compiler here: install gcc to test the compiled kernel"
)


@pytest.mark.parametrize("width", [1, 7, 256, 257, 1000, 5003])
def test_compiled_is_the_reference(width):
    generator = torch.Generator().manual_seed(width)
    rows = 300
    logits = 4 * torch.randn(rows, width, generator=generator)
    temperatures = 0.2 + torch.rand(rows, generator=generator)
    draws = torch.rand(rows, generator=generator)
    draws[0], draws[1] = 0.0, 1 - 2**-24
    got = choose_tokens(logits, temperatures, draws)[0]
    with use_reference():
        want = choose_tokens(logits, temperatures, draws)[0]
    # A draw that falls within rounding of the border of two tokens may go to either.
    cumulative = (logits.double() / temperatures[:, None].double()).softmax(-1).cumsum(-1)
    differs = (got != want).nonzero().flatten().tolist()
    assert len(differs) <= 3
    for row in differs:
        low = min(got[row], want[row])
        assert abs(float(cumulative[row, low] - draws[row])) < 1e-6


def test_a_row_does_not_know_of_others():
    generator = torch.Generator().manual_seed(0)
    logits, draws = torch.randn(70, 3000, generator=generator), torch.rand(70, generator=generator)
    ones = torch.ones(70)
    together = choose_tokens(logits, ones, draws)[0]
    alone = [choose_tokens(logits[i : i + 1], ones[:1], draws[i : i + 1])[0] for i in range(70)]
    assert torch.equal(together, torch.cat(alone))


def test_what_cannot_be_drawn_is_not_drawn():
    width = 600
    logits = torch.full((4, width), -math.inf)
    logits[:, 300] = 1.0
    logits[1, 599] = 1.0
    draws = torch.tensor([0.0, 1 - 2**-24, 0.5, 1 - 2**-24])
    assert choose_tokens(logits, torch.ones(4), draws)[0].tolist() == [300, 599, 300, 300]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_give_no_token(bad):
    logits = torch.zeros(3, 40)
    logits[1, 17] = bad
    logits[2] = -math.inf
    tokens = choose_tokens(logits, torch.ones(3), torch.full((3,), 0.5))[0].tolist()
    assert tokens[0] >= 0
    assert tokens[1:] == [NO_TOKEN, NO_TOKEN]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_at_temperature_0_it_is_the_first_of_the_likeliest(bad):
    logits = torch.randn(5, 700)
    logits[1, 3] = logits[1, 611] = 9.0
    logits[2, 17] = bad
    logits[3] = -math.inf
    tokens, _ = choose_tokens(logits, torch.zeros(5), torch.zeros(5))
    with use_reference():
        assert torch.equal(tokens, choose_tokens(logits, torch.zeros(5), torch.zeros(5))[0])
    assert tokens.tolist()[1:4] == [3, NO_TOKEN, NO_TOKEN]


def test_log_probabilities_are_those_of_the_function_the_learner_uses():
    generator = torch.Generator().manual_seed(0)
    logits, draws = 3 * torch.randn(40, 900, generator=generator), torch.rand(40, generator=generator)
    temperatures = torch.tensor([0.0, 0.3, 1.0, 2.0] * 10)
    scales = torch.where(temperatures == 0, 1.0, temperatures).reciprocal()
    tokens, logprobs = choose_tokens(logits, temperatures, draws, scales)
    assert torch.equal(logprobs, token_logprobs(logits, tokens, temperatures))


@pytest.mark.parametrize("width", [1, 31, 32, 33, 300, 5003])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_a_mask_leaves_out_is_not_chosen_and_changes_no_log_probability(width, temperature):
    generator = torch.Generator().manual_seed(width)
    rows, words = 60, -(-width // 32)
    logits = 3 * torch.randn(rows, width, generator=generator)
    masks = torch.randint(-(2**31), 2**31, (rows, words), generator=generator).to(torch.int32)
    masks[0], masks[1] = -1, 0
    logits[2, -1] = math.nan if width > 1 else 0.0
    masks[2, -1] = 0
    temperatures, draws = torch.full((rows,), temperature), torch.rand(rows, generator=generator)
    places = torch.arange(width)
    allowed = (masks[:, places // 32] >> places % 32 & 1).bool()
    tokens, logprobs = choose_tokens(logits, temperatures, draws, torch.ones(rows), masks)
    want, _ = choose_tokens(logits.masked_fill(~allowed, -math.inf), temperatures, draws)
    assert torch.equal(tokens, want)
    assert tokens[1] == NO_TOKEN
    chosen = [row for row in range(rows) if tokens[row] != NO_TOKEN and row != 2]
    assert all(allowed[row, tokens[row]] for row in chosen)
    free = token_logprobs(logits[chosen], tokens[chosen], torch.ones(len(chosen)))
    assert torch.allclose(logprobs[chosen], free, atol=1e-6)
    with use_reference():
        again, _ = choose_tokens(logits, temperatures, draws, None, masks)
    assert (again != tokens).sum() <= 1
