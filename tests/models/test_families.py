"""Every family against transformers: logits, continuations, files."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from rondo.models import Decoder, Packed, load, save
from rondo.ops.dispatch import use_reference
from support.families import CONFIGS, VOCAB, reference

FAMILIES = list(CONFIGS)
RELATIVE = 1e-4


@pytest.fixture(params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Decoder, Path]:
    theirs = reference(request.param)
    theirs.save_pretrained(tmp_path / "model")
    return theirs, load(tmp_path / "model"), tmp_path / "model"


def random_tokens(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits_of(model: Decoder, tokens: torch.Tensor, cu_seqlens: list[int] | None = None) -> torch.Tensor:
    attend = Packed(cu_seqlens or [0, len(tokens)])
    return model(tokens, attend.positions, attend)


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours - theirs).abs().max() <= RELATIVE * theirs.abs().max()


def test_logits(pair: tuple[Any, Decoder, Path]) -> None:
    theirs, ours, _ = pair
    for length in (1, 5, 31, 64):
        tokens = random_tokens(length, length)
        with torch.no_grad():
            assert_close(logits_of(ours, tokens), theirs(tokens[None], use_cache=False).logits[0])


def test_reference_operations(pair: tuple[Any, Decoder, Path]) -> None:
    theirs, ours, _ = pair
    tokens = random_tokens(40)
    with torch.no_grad(), use_reference():
        assert_close(logits_of(ours, tokens), theirs(tokens[None], use_cache=False).logits[0])


def test_packed_rows_equal_separate_rows(pair: tuple[Any, Decoder, Path]) -> None:
    _, ours, _ = pair
    documents = [random_tokens(length, length) for length in (9, 1, 40, 17, 9)]
    starts = [0, *torch.tensor([len(d) for d in documents]).cumsum(0).tolist()]
    packed = logits_of(ours, torch.cat(documents), starts)
    separate = torch.cat([logits_of(ours, document) for document in documents])
    assert_close(packed, separate)


@pytest.mark.parametrize("read", [[3, 12, 19], [0], []], ids=str)
def test_rows_nobody_reads_may_be_left_out(pair: tuple[Any, Decoder, Path], read: list[int]) -> None:
    _, ours, _ = pair
    rows, attend = torch.tensor(read, dtype=torch.int64), Packed([0, 20])
    with torch.no_grad():
        whole = ours.trunk(random_tokens(20, 0), attend.positions, attend)
        torch.testing.assert_close(
            ours.trunk(random_tokens(20, 0), attend.positions, attend, rows),
            whole[rows],
            rtol=1e-4,
            atol=1e-4,
        )


def test_greedy_continuation(pair: tuple[Any, Decoder, Path]) -> None:
    theirs, ours, _ = pair
    prompt = random_tokens(6)
    expected = theirs.generate(
        prompt[None], attention_mask=torch.ones(1, 6), do_sample=False, max_new_tokens=12, eos_token_id=None
    )[0]
    tokens = prompt
    for _ in range(12):
        tokens = torch.cat([tokens, logits_of(ours, tokens)[-1].argmax()[None]])
    assert tokens.tolist() == expected.tolist()


def test_export_is_byte_equal_and_loads_in_transformers(
    pair: tuple[Any, Decoder, Path], tmp_path: Path
) -> None:
    theirs, ours, folder = pair
    save(ours, tmp_path / "export")
    exported = (tmp_path / "export" / "model.safetensors").read_bytes()
    assert exported == (folder / "model.safetensors").read_bytes()
    again = hf.AutoModelForCausalLM.from_pretrained(
        tmp_path / "export", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokens = random_tokens(20)
    with torch.no_grad():
        assert_close(again(tokens[None]).logits[0], theirs(tokens[None]).logits[0])


def test_gradients(pair: tuple[Any, Decoder, Path]) -> None:
    """The same module trains: gradients of a plain loss equal transformers'."""
    theirs, ours, _ = pair
    tokens = random_tokens(24)
    attend = Packed([0, 24])
    ours(tokens, attend.positions, attend).float().log_softmax(-1)[:, 5].sum().backward()
    theirs.zero_grad()
    theirs(tokens[None], use_cache=False).logits[0].log_softmax(-1)[:, 5].sum().backward()
    grad, expected = ours.embed.weight.grad, theirs.get_input_embeddings().weight.grad
    assert grad is not None
    assert (grad - expected).abs().max() <= 1e-3 * expected.abs().max()
