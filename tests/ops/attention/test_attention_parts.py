"""Parts of attention, and their way back: each version, alone and put together."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rondo.ops import AttentionSpec, attention_part, attention_part_gradients, packed_attention
from rondo.ops.attention import flash
from rondo.ops.attention import parts as module
from rondo.ops.dispatch import use_reference

PLAIN = AttentionSpec(0, 4, 2, 16, 16, 16**-0.5)
SPECS = {
    "plain": PLAIN,
    "window": replace(PLAIN, window=7),
    "soft cap": replace(PLAIN, softcap=1.5),
    "narrow values": replace(PLAIN, value_dim=8),
}
DOCUMENTS = (0, 1, 24, 24, 61)


def drawn(spec: AttentionSpec, length: int) -> tuple[Tensor, ...]:
    make = torch.Generator().manual_seed(3)
    shapes = ((spec.num_heads, 16), (spec.num_kv_heads, 16), (spec.num_kv_heads, spec.value_dim))
    tensors = [torch.randn(length, *shape, generator=make) for shape in shapes]
    return (*tensors, torch.randn(length, spec.num_heads, spec.value_dim, generator=make))


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("version", ["reference", "fast"])
def test_the_only_part_is_the_whole(kind: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 10)
    spec = SPECS[kind]
    q, k, v, grad = drawn(spec, DOCUMENTS[-1])
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    with use_reference():
        wanted = packed_attention(spec, *leaves, DOCUMENTS)
        gradients = torch.autograd.grad(wanted, leaves, grad)

    def found() -> tuple[Tensor, ...]:
        out, logarithms = attention_part(spec, q, k, v, DOCUMENTS)
        return out, *attention_part_gradients(spec, grad, q, k, v, out, logarithms, DOCUMENTS)

    if version == "reference":
        with use_reference():
            results = found()
    else:
        results = found()
    for result, right in zip(results, (wanted, *gradients), strict=True):
        torch.testing.assert_close(result, right, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("window", [None, 7])
def test_flash_attention_is_called_as_pytorch_wants_it(window: int | None) -> None:
    """Types, shapes and the order of arguments, which PyTorch checks without computing anything."""
    spec = replace(PLAIN, window=window)
    q, k, v, grad = (x.to("meta", torch.bfloat16) for x in drawn(spec, DOCUMENTS[-1]))
    out, logarithms = flash.attention_part_flash(spec, q, k, v, DOCUMENTS)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    assert (logarithms.shape, logarithms.dtype) == (q.shape[:2], torch.float32)
    found = flash.attention_part_gradients_flash(spec, grad, q, k, v, out, logarithms, DOCUMENTS)
    assert [x.shape for x in found] == [x.shape for x in (q, k, v)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["plain", "window"])
def test_on_a_gpu_flash_attention_is_the_reference(kind: str) -> None:
    """Of a part, too: outputs and logarithms of the way back are made to be those of more than it."""
    spec = SPECS[kind]
    q, k, v, grad = (x.bfloat16() for x in drawn(spec, DOCUMENTS[-1]))
    assert (
        attention_part.version(spec, *(x.cuda() for x in (q, k, v)), DOCUMENTS).__module__ == flash.__name__
    )
    with use_reference():
        out, logarithms = attention_part(spec, q, k, v, DOCUMENTS)
        whole = (out * 0.5, logarithms + math.log(2))
        wanted = (out, logarithms, *attention_part_gradients(spec, grad, q, k, v, *whole, DOCUMENTS))
    there = [x.cuda() for x in (q, k, v)]
    found = attention_part(spec, *there, DOCUMENTS)
    on_device = [x.cuda() for x in whole]
    found += attention_part_gradients(spec, grad.cuda(), *there, *on_device, DOCUMENTS)
    for one, other in zip(found, wanted, strict=True):
        assert float((one.cpu().float() - other.float()).abs().max()) < 0.02 * float(other.abs().max())


@pytest.mark.parametrize("kind", SPECS)
def test_logarithms_of_versions_are_alike(kind: str) -> None:
    spec = SPECS[kind]
    q, k, v, _ = drawn(spec, DOCUMENTS[-1])
    fast = attention_part(spec, q, k, v, DOCUMENTS)
    with use_reference():
        reference = attention_part(spec, q, k, v, DOCUMENTS)
    for one, other in zip(fast, reference, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)
