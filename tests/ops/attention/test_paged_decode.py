"""The compiled attention of one new token a request, over pasts of one slice and of several."""

import dataclasses

import pytest
import torch

from rondo.ops import AttentionSpec, DecodeStep, Pages, paged_decode
from rondo.ops.attention.pages import encode
from rondo.ops.native.attention.attend import Pasts, attend
from rondo.ops.native.attention.paged_decode import WORK_FOR_THREADS, paged_decode_native
from rondo.ops.native.build.build import library
from support.threads import threads

pytestmark = pytest.mark.skipif(
    library("paged_decode") is None, reason="no C compiler here: install gcc to test the compiled kernel"
)
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn)
SPECS = {
    "grouped": AttentionSpec(0, 4, 2, 32, 32, 0.2),
    "window": AttentionSpec(0, 4, 2, 32, 32, 0.2, window=300),
    "sinks, capped": AttentionSpec(0, 3, 1, 64, 64, 0.3, softcap=3.0, sinks=True),
    "odd sizes": AttentionSpec(0, 4, 4, 12, 20, 0.3),
    "wide": AttentionSpec(0, 8, 1, 128, 72, 0.1),
    "full tiles": AttentionSpec(0, 6, 2, 64, 48, 0.1),
}
KEPT_AND_GIVEN = [*((kept, torch.float32) for kept in TYPES), (torch.bfloat16, torch.bfloat16)]
LENGTHS = [1, 255, 256, 257, 700, 1030, 3]
SIZE = 16


@dataclasses.dataclass
class Case:
    spec: AttentionSpec
    pages: tuple[Pages, Pages]
    new: tuple[torch.Tensor, ...]
    step: DecodeStep
    sinks: torch.Tensor | None

    def copy(self) -> "Case":
        pages = tuple(Pages(p.dtype, *(tensor.clone() for tensor in p.tensors)) for p in self.pages)
        return dataclasses.replace(self, pages=pages)

    def only(self, row: int) -> "Case":
        step, at = self.step, slice(row, row + 1)
        longest = int(step.lengths[row])
        one = DecodeStep(step.tables[at].contiguous(), step.lengths[at], step.slots[at], longest)
        return dataclasses.replace(self.copy(), new=tuple(x[at] for x in self.new), step=one)

    def run(self, op) -> torch.Tensor:
        return op(self.spec, *self.pages, *self.new, self.step, self.sinks)


def case(spec, kept, given=torch.float32) -> Case:
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    pages_each = -(-max(LENGTHS) // SIZE)
    blocks = len(LENGTHS) * pages_each
    sizes = (spec.head_dim, spec.value_dim)
    pages = tuple(Pages(kept, *encode(random(blocks, SIZE, spec.num_kv_heads, n), kept)) for n in sizes)
    tables = torch.randperm(blocks, generator=generator).view(len(LENGTHS), -1)
    lengths = torch.tensor(LENGTHS)
    slots = tables[torch.arange(len(LENGTHS)), (lengths - 1) // SIZE] * SIZE + (lengths - 1) % SIZE
    shapes = ((spec.num_heads, sizes[0]), (spec.num_kv_heads, sizes[0]), (spec.num_kv_heads, sizes[1]))
    new = tuple(random(len(LENGTHS), *shape).to(given) for shape in shapes)
    step = DecodeStep(tables, lengths, slots, max(LENGTHS))
    return Case(spec, pages, new, step, random(spec.num_heads) if spec.sinks else None)


@pytest.mark.parametrize("kept", TYPES, ids=str)
@pytest.mark.parametrize("given", TYPES[:3], ids=str)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_compiled_is_the_reference(spec, given, kept):
    ours = case(spec, kept, given)
    want = ours.copy()
    got = ours.run(paged_decode_native)
    assert torch.allclose(
        got.float(),
        want.run(paged_decode.reference).float(),
        atol=2e-6 if given == torch.float32 else 2e-2,
        rtol=1e-5,
    )
    for written, expected in zip(ours.pages, want.pages, strict=True):
        for a, b in zip(written.tensors, expected.tensors, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("kept", TYPES, ids=str)
def test_stored_rows_are_the_references_for_every_kind_of_number(kept):
    """Edges between two steps, numbers too small and too large for the type, rows that are not finite."""
    spec = AttentionSpec(0, 1, 1, 64, 64, 1.0)
    count = 512
    sizes = 10.0 ** torch.linspace(-44, 38, count)[:, None, None]
    rows = torch.randn(count, 1, 64, generator=torch.Generator().manual_seed(0)) * sizes
    rows[::7] = (torch.arange(64) - 32) * 0.5 * sizes[::7]
    rows[::11, 0, 3], rows[5, 0, 0], rows[6, 0, 0] = 0.0, torch.inf, -torch.inf
    rows[7] = torch.nan
    rows[8] = 0.0
    at = torch.arange(count)
    step = DecodeStep(at[:, None], torch.ones(count, dtype=torch.int64), at, 1)
    empty = [Pages(kept, *encode(torch.zeros(count, 1, 1, 64), kept)) for _ in range(4)]
    paged_decode_native(spec, *empty[:2], rows, rows, -rows, step)
    empty[2].write(at, rows)
    empty[3].write(at, -rows)
    for got, want in ((empty[0], empty[2]), (empty[1], empty[3])):
        for a, b in zip(got.tensors, want.tensors, strict=True):
            assert (
                torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
                if a.is_floating_point()
                else torch.equal(a, b)
            )


@pytest.mark.parametrize(("kept", "given"), KEPT_AND_GIVEN, ids=str)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_neighbours_and_threads_change_no_bit(spec, kept, given):
    whole = case(spec, kept, given)
    assert len(LENGTHS) * spec.num_heads * max(LENGTHS) * spec.head_dim > WORK_FOR_THREADS
    want = whole.copy().run(paged_decode_native)
    for count in (2, 3):
        with threads(count):
            assert torch.equal(whole.copy().run(paged_decode_native), want)
            for row in range(len(LENGTHS)):
                assert torch.equal(whole.only(row).run(paged_decode_native)[0], want[row])


MANY = SPECS | {
    "five queries, window": AttentionSpec(0, 5, 1, 24, 40, 0.2, window=270),
    "one query": AttentionSpec(0, 2, 2, 64, 64, 0.2, sinks=True),
}


@pytest.mark.parametrize(("kept", "given"), KEPT_AND_GIVEN, ids=str)
@pytest.mark.parametrize("spec", MANY.values(), ids=MANY)
def test_tokens_of_one_past_together_have_the_bits_of_each_alone(spec, kept, given):
    """Over pasts of one slice and of several, with what is behind a token, which it does not see, not finite."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([*range(1, 40), *range(230, 300), *range(508, 530)])
    pages_each = -(-int(lengths.max()) // SIZE)
    sizes = (spec.head_dim, spec.value_dim)
    shapes = [(2 * pages_each, SIZE, spec.num_kv_heads, n) for n in sizes]
    keys, values = (Pages(kept, *encode(torch.randn(*shape, generator=generator), kept)) for shape in shapes)
    tables = torch.randperm(2 * pages_each, generator=generator).view(2, -1)
    owners = torch.tensor([0, 1]).repeat_interleave(len(lengths))
    lengths = lengths.repeat(2)
    slots = tables[owners, (lengths - 1) // SIZE] * SIZE + (lengths - 1) % SIZE
    q, k, v = (
        torch.randn(len(lengths), *shape, generator=generator).to(given)
        for shape in ((spec.num_heads, sizes[0]), *((spec.num_kv_heads, n) for n in sizes))
    )
    sinks = torch.randn(spec.num_heads, generator=generator) if spec.sinks else None
    step = DecodeStep(tables[owners].contiguous(), lengths, slots, int(lengths.max()))
    for _ in range(2):  # once to write what the others read
        alone = paged_decode_native(spec, keys, values, q, k, v, step, sinks)
    pasts = Pasts(tables, owners, lengths, int(lengths.sum()))
    assert torch.equal(attend(spec, q, keys, values, pasts, sinks), alone)
    numbers = values.data if values.scales is None else values.scales
    for at in (514, 250, 12):
        numbers.flatten(0, 1)[tables[:, at // SIZE] * SIZE + at % SIZE] = torch.nan
        together = attend(spec, q, keys, values, pasts, sinks)
        assert torch.equal(together[lengths <= at], alone[lengths <= at])
        beyond = (lengths > at) & (lengths - (spec.window or step.longest) <= at)
        assert together[beyond].isnan().any(-1).all()
