"""The compiled small operations against their references, values and gradients."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rondo.ops import RopeSpec, gated, rms_norm, rope_tables, rotate
from rondo.ops.native.build.build import library
from rondo.ops.native.pointwise.pointwise import KINDS
from support.threads import threads

pytestmark = pytest.mark.skipif(
    library("pointwise") is None, reason="no C compiler here: install gcc to test the compiled kernels"
)
PRECISION = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
Operation = Callable[..., Tensor]


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=generator)).to(dtype).requires_grad_()


def rotation(dim: int, tokens: int, dtype: torch.dtype) -> tuple[RopeSpec, Tensor, Tensor]:
    spec = RopeSpec(dim, 10000.0)
    return spec, *rope_tables(spec, torch.arange(tokens), None, dtype)


def cases(dtype: torch.dtype) -> dict[str, tuple[Operation, Operation, list[Tensor]]]:
    """Name -> (compiled, reference in fp32, inputs)."""

    def turned(operation: Operation, dim: int) -> Operation:
        def run(x: Tensor) -> Tensor:
            spec, cos, sin = rotation(dim, len(x), dtype)
            return operation(spec, x, cos.to(x.dtype), sin.to(x.dtype))

        return run

    found: dict[str, tuple[Operation, Operation, list[Tensor]]] = {}
    for shape in ((1, 8), (7, 33), (300, 64), (5, 3, 32)):
        inputs = [numbers(*shape, dtype=dtype), numbers(shape[-1], dtype=dtype, seed=1)]
        for offset in (0.0, 1.0):
            found[f"rms_norm {shape} {offset}"] = (
                lambda x, w, o=offset: rms_norm(x, w, 1e-6, o),
                lambda x, w, o=offset: rms_norm.reference(x, w, 1e-6, o),
                inputs,
            )
    for kind, shape in itertools.product(KINDS, ((1, 8), (7, 33), (300, 64))):
        found[f"{kind} {shape}"] = (
            lambda a, b, kind=kind: gated(kind, a, b),
            lambda a, b, kind=kind: gated.reference(kind, a, b),
            [numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)],
        )
    for shape, dim in (((1, 1, 8), 8), ((9, 3, 32), 32), ((70, 2, 20), 12)):
        both = turned(rotate, dim), turned(rotate.reference, dim)
        found[f"rotate {shape} {dim}"] = (*both, [numbers(*shape, dtype=dtype)])
    return found


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("name", cases(torch.float32))
def test_values_and_gradients_are_the_references(name: str, dtype: torch.dtype) -> None:
    compiled, reference, inputs = cases(dtype)[name]
    wide = [x.detach().float().requires_grad_() for x in inputs]
    ours, theirs = compiled(*inputs), reference(*wide)
    assert ours.dtype == dtype
    weights = torch.linspace(-1, 1, ours.numel()).view(ours.shape)
    found = [ours, *torch.autograd.grad((ours.float() * weights).sum(), inputs)]
    wanted = [theirs, *torch.autograd.grad((theirs * weights).sum(), wide)]
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == dtype
        assert (a.float() - b).abs().max() <= PRECISION[dtype] * b.abs().max().clamp(min=1e-3)
    with torch.inference_mode():
        assert torch.equal(compiled(*inputs), ours)


@pytest.mark.parametrize("name", cases(torch.float32))
def test_a_row_depends_on_nothing_but_itself(name: str) -> None:
    """Bit for bit, alone or in a batch, with one thread or two."""
    compiled, _, inputs = cases(torch.float32)[name]
    x, *rest = [x.detach() for x in inputs]
    rest = [y[-1:] if y.shape == x.shape else y for y in rest]
    if not name.startswith("rotate"):
        whole = compiled(*(y.detach() for y in inputs))
        assert torch.equal(whole[-1:], compiled(x[-1:], *rest))
    results = []
    for count in (1, 2):
        with threads(count):
            large = [y.repeat(400, *[1] * (y.ndim - 1)) if y.ndim > 1 else y for y in inputs]
            out = compiled(*large)
            results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_strided_inputs() -> None:
    x = torch.randn(6, 2, 40)[:, :, ::2]
    spec, cos, sin = rotation(20, 6, torch.float32)
    torch.testing.assert_close(rotate(spec, x, cos, sin), rotate.reference(spec, x, cos, sin))
    w = torch.randn(40)[::2]
    torch.testing.assert_close(rms_norm(x, w, 1e-6), rms_norm.reference(x, w, 1e-6))
    torch.testing.assert_close(gated("silu", x, x), gated.reference("silu", x, x))


def test_what_is_not_finite_stays_so() -> None:
    x = torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0], [1.0, 1.0]])
    for dtype in PRECISION:
        for out in (
            rms_norm(x.to(dtype), torch.ones(2).to(dtype), 1e-6),
            gated("silu", x.to(dtype), x.to(dtype)),
        ):
            assert not out[0].isfinite().all()
            assert not out[1].isfinite().all()
            assert out[2].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_arguments_of_activations(kind: str) -> None:
    # No more than half of the largest number: on some CPUs torch's gelu doubles it.
    x = torch.tensor([-3e38, -200.0, -90.0, -20.0, 0.0, 20.0, 200.0, 1.5e38])
    torch.testing.assert_close(gated(kind, x, torch.ones(8)), gated.reference(kind, x, torch.ones(8)))
    torch.testing.assert_close(gated(kind, torch.ones(8), x), gated.reference(kind, torch.ones(8), x))


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_is_the_same_wherever_it_lies(kind: str) -> None:
    gate, up = numbers(301, dtype=torch.float32).detach(), numbers(301, dtype=torch.float32, seed=1).detach()
    every = gated(kind, gate, up)
    for count in (1, 3, 9, 30):
        assert torch.equal(gated(kind, gate[-count:], up[-count:]), every[-count:])


def test_what_does_not_fit_is_left_to_the_reference() -> None:
    x = torch.randn(6, 2, 8)
    with pytest.raises(RuntimeError):
        rms_norm(x, torch.ones(4), 1e-6)
    spec, cos, sin = rotation(8, 1, torch.float32)
    torch.testing.assert_close(rotate(spec, x, cos, sin), rotate.reference(spec, x, cos, sin))
    batched = torch.vmap(lambda row: rms_norm(row, torch.ones(8), 1e-6))(x)
    torch.testing.assert_close(batched, rms_norm(x, torch.ones(8), 1e-6))
