"""Paged attention, step by step, against whole-sequence attention by the formula."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from rondo.engine.kv.cache import KVCache
from rondo.engine.runner.attend import AttentionSegment, Paged, StepLayout, piece_shape, together
from rondo.ops import AttentionSpec, DecodeStep, packed_attention
from rondo.ops.attention.pages import decode, encode
from rondo.ops.dispatch import use_reference
from rondo.ops.native.build.build import library

SPECS = {
    "gqa": AttentionSpec(0, 4, 2, 8, 8, 0.3),
    "mha": AttentionSpec(0, 2, 2, 8, 8, 0.3),
    "window": AttentionSpec(0, 4, 2, 8, 8, 0.3, window=5),
    "softcap": AttentionSpec(0, 4, 2, 8, 8, 0.3, softcap=2.0),
    "sinks": AttentionSpec(0, 4, 2, 8, 8, 0.3, sinks=True),
    "window, sinks": AttentionSpec(0, 4, 1, 8, 8, 0.3, window=3, sinks=True),
    "values of another size": AttentionSpec(0, 4, 4, 8, 6, 0.3),
    "values of another size, grouped, capped": AttentionSpec(0, 4, 2, 8, 12, 0.3, window=6, softcap=1.0),
}
SIZE = 4


def layout_of(tables: list[list[int]], steps: list[tuple[int, int]]) -> tuple[StepLayout, list[int]]:
    """A step that moves sequence i from steps[i][0] by steps[i][1] tokens; returns the order of rows, too."""
    decodes = [i for i, (_, count) in enumerate(steps) if count == 1]
    fresh = [i for i, (past, count) in enumerate(steps) if count > 1 and past == 0]
    pieces = [i for i, (past, count) in enumerate(steps) if count > 1 and past > 0]
    pieces.sort(key=lambda i: piece_shape(*steps[i]))
    order = decodes + fresh + pieces
    slots, lengths, bounds, chunks, row = [], [], [len(decodes)], [], 0
    for i in order:
        past, count = steps[i]
        slots += [tables[i][at // SIZE] * SIZE + at % SIZE for at in range(past, past + count)]
        lengths += list(range(past + 1, past + count + 1)) if count == 1 else [past + count] * count
        if i in fresh:
            bounds.append(row + count)
        if i in pieces:
            used = -(-(past + count) // SIZE)
            chunks.append(AttentionSegment(row, count, past, np.array(tables[i][:used])))
        row += count
    longest = max((steps[i][0] + 1 for i in decodes), default=0)
    pages = -(-longest // SIZE)
    count, where, sizes = len(decodes), torch.tensor(slots), torch.tensor(lengths)
    table = torch.tensor([tables[i][:pages] for i in decodes])
    step = DecodeStep(table, sizes[:count], where[:count], longest) if decodes else None
    return StepLayout(sizes, step, where[count:], bounds, together(chunks, SIZE, torch.device("cpu"))), order


TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn)


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "torch"])
@pytest.mark.parametrize("kept", TYPES, ids=lambda dtype: f"kept as {dtype}")
@pytest.mark.parametrize("dtype", TYPES[:3], ids=str)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_path_gives_whole_sequence_attention_over_what_is_kept(spec, dtype, kept, native):
    if native and library("paged_decode") is None:
        pytest.skip("no C compiler here: install gcc to test the compiled kernel")
    generator = torch.Generator().manual_seed(0)
    lengths = [13, 9, 17]

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    def stored(rows):
        return decode(*encode(rows, kept), kept, torch.float32)

    q, k, v = (
        [random(n, heads, size) for n in lengths]
        for heads, size in (
            (spec.num_heads, spec.head_dim),
            (spec.num_kv_heads, spec.head_dim),
            (spec.num_kv_heads, spec.value_dim),
        )
    )
    sinks = random(spec.num_heads) if spec.sinks else None
    with use_reference():
        want = [
            packed_attention(
                spec, a.float(), stored(b), stored(c), [0, len(a)], None if sinks is None else sinks.float()
            )
            for a, b, c in zip(q, k, v, strict=True)
        ]
    cache = KVCache([spec], [20], SIZE, kept, torch.device("cpu"))
    tables = [[7, 3, 11, 0, 5], [2, 9, 1, 13, 14], [4, 6, 8, 10, 12]]
    done = [0, 0, 0]
    got = [torch.zeros(n, spec.num_heads, spec.value_dim) for n in lengths]
    # Whole prompts, a cut prompt, decodes beside chunks with a past, decodes alone, one token from nothing.
    for counts in ([6, 0, 3], [1, 4, 7], [1, 1, 5], [1, 1, 1], [4, 1, 0], [0, 2, 1]):
        active = [i for i in range(3) if counts[i]]
        layout, order = layout_of([tables[i] for i in active], [(done[i], counts[i]) for i in active])
        rows = [(active[i], done[active[i]], counts[active[i]]) for i in order]
        attend = Paged(cache, [layout])
        take = [torch.cat([x[i][past : past + count] for i, past, count in rows]) for x in (q, k, v)]
        with nullcontext() if native else use_reference():
            out = attend(spec, *take, sinks).float()
        assert torch.equal(attend.lengths, layout.lengths)
        for i, past, count in rows:
            got[i][past : past + count] = out[:count]
            out = out[count:]
            done[i] += count
    assert done == lengths
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a, b, atol=1e-5 if dtype == torch.float32 else 3e-2)
