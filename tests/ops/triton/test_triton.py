"""Triton's kernels against their references. Where there is no CUDA device they are interpreted, so these tests run in
a process of their own: `TRITON_INTERPRET=1 RONDO_NATIVE=0 pytest tests/ops/triton/test_triton.py`, as `make test-real`
does.

What the interpreter does not show: how a card rounds in products of bf16, what its exp gives, whether it compiles.
"""

import dataclasses
import importlib.util
import os

import pytest
import torch

from rondo.ops import (
    AttentionSpec,
    Chunks,
    DecodeStep,
    Pages,
    RopeSpec,
    add_rms_norm,
    choose_tokens,
    chunk_attention,
    gated,
    paged_decode,
    rms_norm,
    rope_tables,
    rotate,
    token_logprobs,
)
from rondo.ops.attention.pages import encode
from rondo.ops.dispatch import use_reference
from rondo.ops.triton.at_hand import missing
from rondo.ops.triton.attention import SLICE, write
from rondo.ops.vocabulary.logprobs import row_logprobs

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
DEVICE = "cuda" if GPU else "cpu"
TYPES = (torch.float32, torch.bfloat16, torch.float16)
PRECISION = {torch.float32: 2**-21, torch.bfloat16: 2**-6, torch.float16: 2**-9}
"""Of a few roundings to the type, for numbers about 1: the references round each step, the kernels their result."""
of_types = pytest.mark.parametrize("dtype", TYPES, ids=str)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(DEVICE, dtype)


def near(ours, reference, dtype):
    size = PRECISION[dtype]
    torch.testing.assert_close(ours.float(), reference.float(), rtol=size, atol=size, equal_nan=True)


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, with others between its rows."""
    return torch.cat([x, x], -1)[..., : x.shape[-1]]


def test_they_run():
    assert missing() is None
    x = random(2, 8)
    assert rms_norm.version(x, x[0], 1e-6).__name__ == "rms_norm_triton"
    with use_reference():
        assert rms_norm.version(x, x[0], 1e-6) is rms_norm.reference
    assert rms_norm.version(x.double(), x[0].double(), 1e-6) is rms_norm.reference


@of_types
@pytest.mark.parametrize("shape", [(1, 1), (5, 48), (2, 3, 128), (0, 16), (3, 1000)], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norm(shape, offset, dtype):
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype)
    near(rms_norm(x, weight, 1e-6, offset), rms_norm.reference(x, weight, 1e-6, offset), dtype)
    assert torch.equal(rms_norm(strided(x), weight, 1e-6, offset), rms_norm(x, weight, 1e-6, offset))


@of_types
def test_norm_of_a_sum_is_the_norm_of_the_sum(dtype):
    x, added, weight = random(5, 48, dtype=dtype), random(5, 48, dtype=dtype), random(48, dtype=dtype)
    total, normed = add_rms_norm(x, strided(added), weight, 1e-6)
    if GPU or dtype != torch.bfloat16:  # the interpreter does not round to bf16, it cuts
        assert torch.equal(total, x + added)
    near(total, x + added, dtype)
    assert torch.equal(normed, rms_norm(total, weight, 1e-6))


@of_types
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu", "clamped_swiglu"])
def test_gated(kind, dtype):
    gate, up = random(7, 300, dtype=dtype) * 3, random(7, 300, dtype=dtype)
    gate[0, 0] = up[0, 1] = torch.nan
    if "gelu" not in kind:  # what torch makes of those differs between its own loops
        gate[0, 2:4] = torch.tensor([torch.inf, -torch.inf])
    gate[1], up[1] = gate[1] * 10, up[1] * 10
    ours, reference = gated(kind, strided(gate), up), gated.reference(kind, gate, up)
    torch.testing.assert_close(
        ours.float(), reference.float(), rtol=2 * PRECISION[dtype], atol=32 * PRECISION[dtype], equal_nan=True
    )


@of_types
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "size"), [(24, 40), (16, 16), (2, 9)])
def test_rotation(interleaved, dim, size, dtype):
    spec = RopeSpec(dim, 1e4, interleaved=interleaved)
    x = random(6, 3, size, dtype=dtype)
    tables = rope_tables(spec, torch.arange(6, device=DEVICE), None, dtype)
    near(rotate(spec, x, *tables), rotate.reference(spec, x, *tables), dtype)
    assert torch.equal(rotate(spec, strided(x), *tables), rotate(spec, x, *tables))


@pytest.mark.parametrize("name", ["norm", "sum", "gated", "rotation"])
def test_gradients_are_the_references(name):
    rope = RopeSpec(8, 1e4)
    tables = rope_tables(rope, torch.arange(4, device=DEVICE), None, torch.float32)
    call = {
        "norm": lambda x, y, w: rms_norm(x, w, 1e-6),
        "sum": lambda x, y, w: sum(add_rms_norm(x, y, w, 1e-6)),
        "gated": lambda x, y, w: gated("silu", x, y),
        "rotation": lambda x, y, w: rotate(rope, x, *tables),
    }[name]
    given = [random(4, 3, 8), random(4, 3, 8), random(8)]
    found = []
    for references in (False, True):
        tensors = [x.clone().requires_grad_() for x in given]
        if references:
            with use_reference():
                out = call(*tensors)
        else:
            out = call(*tensors)
        out.square().sum().backward()
        found.append([x.grad for x in tensors])
    for ours, reference in zip(*found, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


@of_types
@pytest.mark.parametrize("scaled", ["no", "one", "each"])
def test_logprobs(scaled, dtype):
    logits = random(4, 9001, dtype=dtype) * 4
    logits[1, :8999], logits[2, 5], logits[3, 7] = -torch.inf, torch.inf, torch.nan
    tokens = torch.tensor([0, 9000, 7, 4096], device=DEVICE)
    scale = None if scaled == "no" else torch.rand(4, 1).to(DEVICE)[: 1 if scaled == "one" else 4] + 0.5
    ours, reference = row_logprobs(logits, tokens, scale), row_logprobs.reference(logits, tokens, scale)
    torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert torch.equal(ours[:1], row_logprobs(logits[:1], tokens[:1], None if scale is None else scale[:1]))


def test_logprobs_have_a_gradient():
    logits = random(3, 50).requires_grad_()
    token_logprobs(logits, torch.tensor([1, 2, 3], device=DEVICE), 0.7).sum().backward()
    assert logits.grad.abs().sum() > 0


@pytest.mark.parametrize("with_masks", [False, True])
def test_draws(with_masks):
    rows, width = 60, 9000
    logits = random(rows, width)
    temperatures = torch.where(torch.arange(rows) % 3 == 0, 0.0, 0.8).to(DEVICE)
    draws = torch.rand(rows).to(DEVICE)
    draws[1], draws[2] = 0.0, 1 - 2**-24
    masks = torch.randint(-(2**31), 2**31 - 1, (rows, -(-width // 32)), dtype=torch.int32).to(DEVICE)
    given = logits, temperatures, draws, temperatures + 1, masks if with_masks else None
    tokens, logprobs = choose_tokens(*given)
    expected, their_logprobs = choose_tokens.reference(*given)
    differ = tokens != expected
    assert differ.sum() <= 1  # a draw at the border of two tokens may fall to either
    torch.testing.assert_close(logprobs[~differ], their_logprobs[~differ], rtol=1e-5, atol=1e-5)
    assert torch.equal(tokens[7:8], choose_tokens(*(None if x is None else x[7:8] for x in given))[0])


def test_draws_from_logits_that_are_not_finite():
    logits = random(8, 5000)
    logits[0, 3] = logits[1, 4999] = torch.nan
    logits[2, 0] = logits[3, 4500] = torch.inf
    logits[4], logits[5] = -torch.inf, -torch.inf
    logits[6, :4999], logits[7, 1:] = -torch.inf, -torch.inf
    temperatures = torch.tensor([0.0, 0.7] * 4, device=DEVICE)
    tokens, _ = choose_tokens(logits, temperatures, torch.full((8,), 0.999, device=DEVICE))
    assert tokens.tolist() == [-1] * 6 + [4999, 0]


KEPT = (*TYPES, torch.int8, torch.float8_e4m3fn)
SPECS = {
    "grouped": AttentionSpec(0, 4, 2, 32, 32, 0.2),
    "window": AttentionSpec(0, 4, 2, 32, 32, 0.2, window=SLICE - 30),
    "sinks, capped": AttentionSpec(0, 3, 1, 64, 64, 0.3, softcap=3.0, sinks=True),
    "odd sizes": AttentionSpec(0, 4, 4, 12, 20, 0.3),
    "many heads of one key": AttentionSpec(0, 70, 1, 16, 16, 0.2, window=9),
}
LENGTHS = (1, SLICE - 1, SLICE + 1, 300, 3)
COUNTS = (1, 3, 7, 12, 3)
SIZE = 16


@dataclasses.dataclass
class Case:
    """Requests of these lengths: of each, its last tokens as a chunk, or the last one alone."""

    spec: AttentionSpec
    pages: tuple[Pages, Pages]
    new: list[torch.Tensor]
    tables: torch.Tensor
    sinks: torch.Tensor | None

    def copied(self) -> "Case":
        pages = tuple(Pages(p.dtype, *(tensor.clone() for tensor in p.tensors)) for p in self.pages)
        return dataclasses.replace(self, pages=pages)

    def chunks(self, cut: int = 0) -> tuple[Chunks, torch.Tensor]:
        """Without the last `cut` tokens of each request; and which rows of `new` those are."""
        counts = [max(0, count - cut) for count in COUNTS]
        pasts = [length - count for length, count in zip(LENGTHS, COUNTS, strict=True)]
        rows, slots, start = [], [], 0
        for table, count, whole, past in zip(self.tables, counts, COUNTS, pasts, strict=True):
            at = torch.arange(past, past + count, device=DEVICE)
            slots.append(table[at // SIZE] * SIZE + at % SIZE)
            rows.append(torch.arange(start, start + count, device=DEVICE))
            start += whole
        return Chunks(self.tables, torch.cat(slots), counts, pasts), torch.cat(rows)

    def attend(self, op, cut: int = 0) -> torch.Tensor:
        chunks, rows = self.chunks(cut)
        return op(self.spec, *self.pages, *(x[rows] for x in self.new), chunks, self.sinks)

    def decode(self, op, only: slice = slice(None), longest: int = max(LENGTHS)) -> torch.Tensor:
        lengths = torch.tensor(LENGTHS, device=DEVICE)
        last = lengths - 1
        slots = self.tables.gather(1, last[:, None] // SIZE)[:, 0] * SIZE + last % SIZE
        rows = torch.tensor(COUNTS).cumsum(0) - 1
        new = (x[rows.to(DEVICE)][only] for x in self.new)
        step = DecodeStep(self.tables[only], lengths[only], slots[only], longest)
        return op(self.spec, *self.pages, *new, step, self.sinks)


def case(spec: AttentionSpec, kept: torch.dtype, given: torch.dtype) -> Case:
    blocks = len(LENGTHS) * -(-max(LENGTHS) // SIZE)
    sizes = spec.head_dim, spec.value_dim
    pages = tuple(Pages(kept, *encode(random(blocks, SIZE, spec.num_kv_heads, n), kept)) for n in sizes)
    tables = torch.randperm(blocks).view(len(LENGTHS), -1).to(DEVICE)
    heads = (spec.num_heads, sizes[0]), (spec.num_kv_heads, sizes[0]), (spec.num_kv_heads, sizes[1])
    new = [random(sum(COUNTS), *each, dtype=given) for each in heads]
    return Case(spec, pages, new, tables, random(spec.num_heads) if spec.sinks else None)


attention_cases = pytest.mark.parametrize(
    ("spec", "kept", "given"),
    [
        *((spec, given, given) for spec in SPECS for given in TYPES[:2]),
        *(("grouped", kept, torch.float32) for kept in KEPT[1:]),
        ("sinks, capped", torch.int8, torch.float16),
        ("window", torch.float8_e4m3fn, torch.bfloat16),
    ],
    ids=str,
)


def written_alike(ours: Case, reference: Case) -> None:
    for mine, theirs in zip(ours.pages, reference.pages, strict=True):
        for a, b in zip(mine.tensors, theirs.tensors, strict=True):
            if mine.dtype == torch.bfloat16 and not GPU:
                near(a, b, torch.bfloat16)  # the interpreter cuts
            else:
                assert torch.equal(a, b)


@attention_cases
def test_attention(spec, kept, given):
    """Of one token a request, and of several; and a token has the same bits in both."""
    ours = case(SPECS[spec], kept, given)
    theirs = ours.copied()
    precision = 4 * max(PRECISION[given], PRECISION.get(kept, 0.0))
    decoded, expected = ours.decode(paged_decode), theirs.decode(paged_decode.reference)
    torch.testing.assert_close(decoded.float(), expected.float(), rtol=precision, atol=precision)
    written_alike(ours, theirs)
    made, expected = ours.attend(chunk_attention), theirs.attend(chunk_attention.reference)
    torch.testing.assert_close(made.float(), expected.float(), rtol=precision, atol=precision)
    written_alike(ours, theirs)
    assert torch.equal(ours.decode(paged_decode), made[torch.tensor(COUNTS).cumsum(0) - 1])


@pytest.mark.parametrize("spec", ["grouped", "window"])
def test_neighbours_cuts_and_a_longer_batch_change_no_bit(spec):
    ours = case(SPECS[spec], torch.float32, torch.float32)
    whole, decoded = ours.attend(chunk_attention), ours.decode(paged_decode)
    _, rows = ours.chunks(cut=2)
    assert torch.equal(ours.attend(chunk_attention, cut=2), whole[rows])
    assert torch.equal(ours.decode(paged_decode, slice(2, 3), LENGTHS[2]), decoded[2:3])
    assert torch.equal(ours.decode(paged_decode, longest=4 * max(LENGTHS)), decoded)


def test_what_lies_beyond_a_requests_end_is_not_seen():
    ours = case(SPECS["grouped"], torch.float32, torch.float32)
    ours.attend(chunk_attention)
    expected = ours.decode(paged_decode), ours.attend(chunk_attention)
    for row, length in zip(ours.tables, LENGTHS, strict=True):
        for pages in ours.pages:
            pages.data[row[length // SIZE], length % SIZE :] = torch.nan
            pages.data[row[length // SIZE + 1 :]] = torch.nan
    assert torch.equal(ours.decode(paged_decode), expected[0])
    assert torch.equal(ours.attend(chunk_attention), expected[1])


@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_a_row_without_a_request_writes_nothing_and_is_zero(kept):
    ours = case(SPECS["grouped"], kept, torch.float32)
    before = ours.copied()
    step = DecodeStep(
        ours.tables[:2],
        torch.zeros(2, dtype=torch.int64, device=DEVICE),
        torch.full((2,), -1, device=DEVICE),
        600,
    )
    out = paged_decode(ours.spec, *ours.pages, *(x[:2] for x in ours.new), step)
    assert not out.any()
    for mine, was in zip(ours.pages, before.pages, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine.tensors, was.tensors, strict=True))


@pytest.mark.parametrize("kept", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_stored_rows_are_the_references_for_every_kind_of_number(kept):
    """Edges between two steps, numbers too small and too large for the type, rows that are not finite."""
    count = 256
    sizes = 10.0 ** torch.linspace(-37, 37, count, device=DEVICE)[:, None, None]
    rows = random(count, 1, 64) * sizes
    rows[::7] = (torch.arange(64, device=DEVICE) - 32) * 0.5 * sizes[::7]
    rows[::11, 0, 3], rows[5, 0, 0], rows[6, 0, 0] = 0.0, torch.inf, -torch.inf
    rows[7] = torch.nan
    rows[8] = 0.0
    at = torch.arange(count, device=DEVICE)
    ours, theirs = (
        [Pages(kept, *encode(torch.zeros(count, 1, 1, 64, device=DEVICE), kept)) for _ in range(2)]
        for _ in range(2)
    )
    write(*ours, at, rows, -rows)
    theirs[0].write(at, rows)
    theirs[1].write(at, -rows)
    for got, want in zip(ours, theirs, strict=True):
        assert torch.equal(got.data, want.data)
        assert torch.equal(got.scales.nan_to_num(7.0), want.scales.nan_to_num(7.0))
