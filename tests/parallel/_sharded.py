"""One of two ranks: each operation on DTensors beside itself on plain tensors. Writes down what it found, as JSON.

`python _sharded.py MEETING RANK OUT`
"""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from rondo import models, ops
from rondo.models import Decoder, Packed
from rondo.ops.dispatch import Op

ROW, HEAD, LAST, WHOLE = Shard(0), Shard(1), Shard(1), Replicate()
ROPE = ops.RopeSpec(dim=8, theta=1e4)
DOCUMENTS = [0, 5, 14, 23]
MODEL = {
    "model_type": "qwen3",
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
ran: list[tuple[str, str]] = []
"""Operations on plain tensors, and the modules of the versions that ran."""


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype)


def attention(heads: int, keys: int, sinks: bool = False) -> tuple[Callable[..., Tensor], list[Tensor]]:
    spec = ops.AttentionSpec(0, heads, keys, 16, 16, 0.25, window=7, sinks=sinks)
    tensors = [random(23, heads, 16), random(23, keys, 16), random(23, keys, 16)]

    def op(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        return ops.packed_attention(spec, q, k, v, DOCUMENTS, sinks)

    return op, [*tensors, random(heads)] if sinks else tensors


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return ops.rms_norm(x, weight, 1e-6)


def silu(gate: Tensor, up: Tensor) -> Tensor:
    return ops.gated("silu", gate, up)


def turned(x: Tensor) -> Tensor:
    """Tables are plain: every rank has them."""
    angles = torch.arange(23 * 4).view(23, 1, 4) / 7.0
    return ops.rotate(ROPE, x, angles.cos(), angles.sin())


TOKENS = torch.arange(23) * 3 % 31


def likely(logits: Tensor) -> Tensor:
    return ops.token_logprobs(logits, TOKENS, 0.7)


def likely_each(logits: Tensor) -> Tensor:
    return ops.token_logprobs(logits, TOKENS, torch.arange(23) / 10)


def likely_and_open(logits: Tensor) -> Tensor:
    return ops.token_logprobs(logits, TOKENS, 0.7, entropy=True)


X, W, B = (23, 33), (37, 33), (37,)
BF16 = torch.bfloat16
CASES: dict[str, tuple[Callable[..., Tensor], Callable[[], list[Tensor]], Sequence[Any], Any]] = {
    "columns": (ops.linear, lambda: [random(*X), random(*W), random(*B)], (WHOLE, ROW, ROW), LAST),
    "columns in bf16": (
        ops.linear,
        lambda: [random(*X, dtype=BF16), random(*W, dtype=BF16)],
        (WHOLE, ROW),
        LAST,
    ),
    "sums": (ops.linear, lambda: [random(*X), random(*W), random(*B)], (LAST, LAST, WHOLE), "Partial"),
    "rows": (ops.linear, lambda: [random(*X), random(*W), random(*B)], (ROW, WHOLE, WHOLE), ROW),
    "rows by a cut weight": (ops.linear, lambda: [random(*X), random(*W)], (ROW, ROW), ROW),
    "batches": (ops.linear, lambda: [random(3, *X), random(*W)], (Shard(1), WHOLE), Shard(1)),
    "nothing cut": (ops.linear, lambda: [random(*X), random(*W)], (WHOLE, WHOLE), WHOLE),
    "norm of rows": (norm, lambda: [random(23, 40), random(40)], (ROW, WHOLE), ROW),
    "norm of heads": (norm, lambda: [random(23, 4, 16), random(16)], (HEAD, WHOLE), HEAD),
    "norm of cut rows": (norm, lambda: [random(23, 40), random(40)], (LAST, ROW), WHOLE),
    "activation": (silu, lambda: [random(23, 37), random(23, 37)], (LAST, LAST), LAST),
    "activation cut once": (silu, lambda: [random(23, 37), random(23, 37)], (WHOLE, ROW), ROW),
    "rotation of heads": (turned, lambda: [random(23, 5, 8)], (HEAD,), HEAD),
    "rotation of rows": (turned, lambda: [random(23, 5, 8)], (ROW,), ROW),
    "logprobs of rows": (likely, lambda: [random(23, 31)], (ROW,), ROW),
    "logprobs of a cut vocabulary": (likely_each, lambda: [random(23, 31)], (LAST,), ROW),
    "entropies of rows": (likely_and_open, lambda: [random(23, 31)], (ROW,), ROW),
    "entropies of a cut vocabulary": (likely_and_open, lambda: [random(23, 31)], (LAST,), ROW),
    "attention": (attention(6, 2)[0], lambda: attention(6, 2)[1], (HEAD, HEAD, HEAD), HEAD),
    "attention to shared keys": (attention(6, 1)[0], lambda: attention(6, 1)[1], (HEAD, WHOLE, WHOLE), HEAD),
    "attention with sinks": (
        attention(4, 4, True)[0],
        lambda: attention(4, 4, True)[1],
        (HEAD, HEAD, HEAD, ROW),
        HEAD,
    ),
    "attention of odd heads": (attention(3, 1)[0], lambda: attention(3, 1)[1], (HEAD, WHOLE, WHOLE), WHOLE),
    "attention of rows": (attention(4, 2)[0], lambda: attention(4, 2)[1], (ROW, ROW, ROW), WHOLE),
}


def whole(x: Tensor) -> Tensor:
    assert isinstance(x, DTensor)
    return x.redistribute(placements=[Replicate()] * x.device_mesh.ndim).to_local()


def difference(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    one, other = one.detach().float(), other.detach().float()
    return float((one - other).abs().max() / other.abs().max())


def beside(name: str, mesh: DeviceMesh) -> dict[str, Any]:
    op, make, placements, output = CASES[name]
    torch.manual_seed(1)
    tensors = [x.requires_grad_() for x in make()]
    want = op(*tensors)
    upstream = torch.randn_like(want)
    want.backward(upstream)
    axes = [[Replicate()] * (mesh.ndim - 1) + [placement] for placement in placements]
    parts = [
        distribute_tensor(x.detach(), mesh, axis).requires_grad_()
        for x, axis in zip(tensors, axes, strict=True)
    ]
    ran.clear()
    got = op(*parts)
    versions = sorted(set(ran))
    back = whole(got)
    back.backward(upstream)
    for part in parts:
        assert part.grad is not None
        assert part.grad.placements == part.placements, (name, part.grad.placements)
    last = got.placements[-1]
    return {
        "output": "Partial" if last.is_partial() else str(last),
        "wanted": str(output),
        "equal": bool(torch.equal(back, want)),
        "forward": difference(back, want),
        "gradients": [difference(whole(p.grad), x.grad) for p, x in zip(parts, tensors, strict=True)],
        "versions": versions,
    }


def decoder() -> Decoder:
    model = models.new(MODEL, seed=3).float()
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.2, generator=generator)
    return model.requires_grad_()


def score(model: Decoder, row: Tensor, tokens: Tensor) -> Tensor:
    """Of each token after the first."""
    count = row.shape[0]
    logits = model(tokens, torch.arange(count), Packed([0, count]))
    return ops.token_logprobs(logits, row.roll(-1))


def row_of(index: int) -> Tensor:
    return (torch.arange(17 + index) * 7 + index) % MODEL["vocab_size"]


def found(model: Decoder, want: Decoder, scores: Tensor, wanted: Tensor) -> dict[str, Any]:
    gradients = dict(want.named_parameters())
    return {
        "equal": bool(torch.equal(scores, wanted)),
        "forward": difference(scores, wanted),
        "gradients": [
            difference(p.grad.full_tensor(), gradients[name].grad) for name, p in model.named_parameters()
        ],
        "versions": sorted(set(ran)),
    }


def gathered(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    """Each rank has documents of its own; parameters come together, as plain tensors, for as long as they are used."""
    want, model = decoder(), decoder()
    both = [score(want, row_of(i), row_of(i)) for i in range(2)]
    (-(both[0].sum() + both[1].sum()) / 2).backward()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    ran.clear()
    scores = score(model, row_of(rank), row_of(rank))
    (-scores.sum()).backward()
    return found(model, want, scores.detach(), both[rank].detach())


def divided(mesh: DeviceMesh) -> dict[str, Any]:
    """A model by heads and neurons, whose parts were told nothing of it."""
    want, model = decoder(), decoder()
    wanted = score(want, row_of(0), row_of(0))
    wanted.sum().backward()
    columns = ("q.weight", "k.weight", "v.weight", "gate.weight", "up.weight", "out.weight")
    for path, module in model.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            full = f"{path}.{name}"
            cut = (
                Shard(0)
                if full.endswith(columns)
                else Shard(1)
                if full.endswith(("o.weight", "down.weight"))
                else None
            )
            where = [Replicate() if cut is None else cut]
            part = distribute_tensor(parameter.detach(), mesh, where)
            setattr(module, name, torch.nn.Parameter(part))
    ran.clear()
    tokens = distribute_tensor(row_of(0), mesh, [Replicate()])
    scores = whole(score(model, row_of(0), tokens))
    scores.sum().backward()
    return found(model, want, scores.detach(), wanted.detach())


def refused(mesh: DeviceMesh) -> dict[str, str]:
    def cut(x: Tensor) -> DTensor:
        return distribute_tensor(x, mesh, [ROW])

    whole = ops.Quantized("int8", torch.ones(4, 32, dtype=torch.int8), torch.ones(4, 1))
    plain = ops.ExpertWeights(random(2, 6, 32), random(2, 6, 32), random(2, 32, 6))
    experts = ops.ExpertWeights(*(cut(each) for each in (plain.gate, plain.up, plain.down)))
    x, chosen = random(4, 32), (torch.ones(4, 1), torch.zeros(4, 1, dtype=torch.int64))
    tries: dict[str, Callable[[], object]] = {
        "a plain tensor with a gradient": lambda: ops.linear(random(*X).requires_grad_(), cut(random(*W))),
        "rows of a quantized product": lambda: ops.quantized_linear(cut(x), whole),
        "quantized": lambda: whole.mapped(cut),
        "rows of experts": lambda: ops.grouped_experts(cut(x), *chosen, plain, "silu"),
        "experts": lambda: ops.grouped_experts(x, *chosen, experts, "silu"),
    }
    return {name: error_of(action) for name, action in tries.items()}


def error_of(action: Callable[[], object]) -> str:
    try:
        action()
    except ValueError as error:
        return str(error)
    return "nothing"


def watch() -> None:
    """Which versions of the operations run on plain tensors."""
    version = Op.version

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = version(self, *args, **kwargs)
        if not chosen.__module__.startswith("rondo.ops.sharded"):
            ran.append((self.__name__, chosen.__module__))
        return chosen

    Op.version = watched  # type: ignore[method-assign]


def main(meeting: str, rank: int, out: Path) -> None:
    store = dist.FileStore(meeting, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    line = init_device_mesh("cpu", (2,))
    square = init_device_mesh("cpu", (1, 2))
    watch()
    report = {
        "line": {name: beside(name, line) for name in CASES},
        "square": {name: beside(name, square) for name in ("columns", "sums", "attention to shared keys")},
        "gathered": gathered(line, rank),
        "divided": divided(line),
        "refused": refused(line),
    }
    out.write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
