"""token_logprobs against PyTorch's log_softmax and Categorical, and how much memory it takes."""

import math

import pytest
import torch
from torch import Tensor

from rondo.ops import token_logprobs
from rondo.ops.dispatch import use_reference
from rondo.ops.vocabulary import logprobs
from support.memory import peak_of

ROWS, VOCAB = 13, 37


def example(
    dtype: torch.dtype = torch.float32, rows: int = ROWS, vocab: int = VOCAB
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(rows, vocab, generator=generator)
    return logits.to(dtype), torch.randint(0, vocab, (rows,), generator=generator)


def expected(logits: Tensor, tokens: Tensor, temperature: float | Tensor) -> Tensor:
    """In fp64, with 0 read as 1."""
    scale = torch.as_tensor(temperature, dtype=torch.float64)
    scale = torch.where(scale == 0, 1.0, scale).reshape(-1, 1)
    return (logits.double() / scale).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


MIXED = torch.tensor([0.0, 0.3, 1.0, 1.7] * 4)[:ROWS]
TEMPERATURES = pytest.mark.parametrize(
    "temperature", [1.0, 0.0, 0, 0.7, 2.5, MIXED], ids=["1", "0.0", "0", "0.7", "2.5", "mixed"]
)
CHUNKS = pytest.mark.parametrize("chunk", [1, VOCAB - 1, VOCAB, 3 * VOCAB + 5, ROWS * VOCAB, 1 << 22])


@TEMPERATURES
@CHUNKS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_and_gradients(
    temperature: float | Tensor, chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
    logits, tokens = example(dtype)
    ours, theirs = logits.clone().requires_grad_(), logits.double().requires_grad_()
    values, reference = token_logprobs(ours, tokens, temperature), expected(theirs, tokens, temperature)
    assert values.dtype == torch.float32
    assert values.shape == (ROWS,)
    assert torch.allclose(values.double(), reference, rtol=1e-5, atol=1e-5)
    upstream = torch.linspace(-2, 2, ROWS)
    values.backward(upstream)
    reference.backward(upstream.double())
    assert ours.grad is not None
    assert theirs.grad is not None
    assert ours.grad.dtype == dtype
    precision = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    assert torch.allclose(ours.grad.double(), theirs.grad, rtol=precision, atol=precision)


@TEMPERATURES
@pytest.mark.parametrize("chunk", [1, 3 * VOCAB + 5, 1 << 22])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_entropies_are_those_of_a_categorical(
    temperature: float | Tensor, chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
    logits, tokens = example(dtype)
    ours, theirs = logits.clone().requires_grad_(), logits.double().requires_grad_()
    found = token_logprobs(ours, tokens, temperature, entropy=True)
    scale = torch.as_tensor(temperature, dtype=torch.float64)
    categorical = torch.distributions.Categorical(
        logits=theirs / torch.where(scale == 0, 1.0, scale).reshape(-1, 1)
    )
    reference = torch.stack([categorical.log_prob(tokens), categorical.entropy()], 1)
    assert found.dtype == torch.float32
    assert torch.equal(found[:, 0], token_logprobs(logits, tokens, temperature)), "to the last bit"
    with torch.no_grad():
        assert torch.equal(token_logprobs(ours, tokens, temperature, entropy=True), found)
    torch.testing.assert_close(found.double(), reference, rtol=1e-5, atol=1e-5)
    upstream = torch.stack([torch.linspace(-2, 2, ROWS), torch.linspace(3, -1, ROWS)], 1)
    found.backward(upstream)
    reference.backward(upstream.double())
    assert ours.grad is not None
    assert theirs.grad is not None
    precision = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=precision, atol=precision)
    with use_reference():
        plain = logits.clone().requires_grad_()
        again = token_logprobs(plain, tokens, temperature, entropy=True)
        again.backward(upstream)
    torch.testing.assert_close(again, found, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain.grad, ours.grad, rtol=precision, atol=precision)


def test_an_entropy_that_is_only_looked_at_changes_no_gradient() -> None:
    logits, tokens = example()
    asked, unasked = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    token_logprobs(asked, tokens, 0.7, entropy=True)[:, 0].sum().backward()
    token_logprobs(unasked, tokens, 0.7).sum().backward()
    assert asked.grad is not None
    assert unasked.grad is not None
    assert torch.equal(asked.grad, unasked.grad)


def test_entropies_of_forbidden_tokens_and_of_certainty() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf, 0.0], [1e4, 0.0, -1e4, 3.0]], requires_grad=True)
    found = token_logprobs(logits, torch.tensor([0, 0]), entropy=True)
    assert found[:, 1].tolist() == pytest.approx([math.log(3), 0.0])
    found.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 2] == 0
    with use_reference():
        again = logits.detach().clone().requires_grad_()
        token_logprobs(again, torch.tensor([0, 0]), entropy=True).sum().backward()
    torch.testing.assert_close(again.grad, logits.grad)


@TEMPERATURES
def test_reference_agrees(temperature: float | Tensor) -> None:
    logits, tokens = example()
    with use_reference():
        assert torch.allclose(
            token_logprobs(logits, tokens, temperature),
            token_logprobs(logits, tokens, temperature),
            atol=1e-5,
        )
        assert torch.allclose(
            token_logprobs(logits, tokens, temperature).double(),
            expected(logits, tokens, temperature),
            atol=1e-5,
        )


def test_a_number_and_a_tensor_of_it_are_the_same() -> None:
    logits, tokens = example()
    for temperature in (0.0, 0.3, 1.0):
        repeated = torch.full((ROWS,), temperature)
        assert torch.equal(
            token_logprobs(logits, tokens, temperature), token_logprobs(logits, tokens, repeated)
        )


@pytest.mark.parametrize("vocab", [300, 40_000, 131_072])
def test_a_row_does_not_depend_on_its_neighbours(vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: the sampler sees a few rows at once, the learner thousands."""
    logits, tokens = example(rows=9, vocab=vocab)
    together = token_logprobs(logits, tokens, 0.8)
    alone = torch.cat([token_logprobs(logits[i : i + 1], tokens[i : i + 1], 0.8) for i in range(9)])
    assert torch.equal(together, alone)
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 2 * vocab)
    assert torch.equal(together, token_logprobs(logits, tokens, 0.8))


def test_forbidden_tokens() -> None:
    """A mask of -inf over part of the vocabulary neither poisons the rest nor its gradient."""
    logits, tokens = example()
    masked = logits.clone()
    masked[:, 5] = -torch.inf
    tokens[tokens == 5] = 6
    tokens[0] = 5
    masked.requires_grad_()
    values = token_logprobs(masked, tokens)
    assert values[0] == -torch.inf
    assert values[1:].isfinite().all()
    values[1:].sum().backward()
    assert masked.grad is not None
    assert masked.grad.isfinite().all()
    assert (masked.grad[:, 5] == 0).all()


def test_large_logits_do_not_overflow() -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    values = token_logprobs(logits, torch.tensor([1]))
    assert values.tolist() == [-1e4]
    values.sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[-1.0, 1.0, 0.0]]


def test_no_rows() -> None:
    logits = torch.empty(0, VOCAB, requires_grad=True)
    for entropy in (False, True):
        values = token_logprobs(logits, torch.empty(0, dtype=torch.long), entropy=entropy)
        values.sum().backward()
        assert values.shape == ((0, 2) if entropy else (0,))


def test_no_second_copy_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory above the logits: some chunks forward, the gradient and some chunks backward."""
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 1 << 19)
    chunk_bytes = 4 << 19
    logits, tokens = example(torch.bfloat16, rows=512, vocab=65_536)
    logits.requires_grad_()
    token_logprobs(logits[:2], tokens[:2]).sum().backward()
    logits.grad = None

    values: list[Tensor] = []
    assert peak_of(lambda: values.append(token_logprobs(logits, tokens, 0.7))) < 12 * chunk_bytes
    assert peak_of(lambda: values[0].sum().backward()) < logits.nbytes + 14 * chunk_bytes < 2 * logits.nbytes


@pytest.mark.parametrize("token", [-100, -1, VOCAB])
def test_a_token_that_is_none_is_refused(token: int) -> None:
    logits, tokens = example()
    tokens[3] = token
    with pytest.raises((IndexError, RuntimeError)):
        token_logprobs(logits, tokens)
