"""Bytes that ranks send in a step of training, one way of dividing at a time, beside the planner's formula.

2, 4 and 8 processes of this machine take one step of a Llama of 8 layers in bf16; a mode of PyTorch's dispatch sees
every collective and counts what goes to other ranks. Ours is what the rank that sends the most has sent, the limit what
`rondo.plan.cost.traffic` says of the same model, layout and batch. Of experts the formula supposes that tokens choose
all ranks equally often; here a router with random weights chooses. Numbers that ranks tell each other about the batch
(how many rows, the loss) are not counted: they are some hundred bytes.
"""

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn
from torch.utils._python_dispatch import TorchDispatchMode

from common import Report, arguments, say
from rondo import models
from rondo.data.batching.packing import Document, pack
from rondo.parallel.config import LayoutConfig
from rondo.parallel.ranks.mesh import Mesh, join
from rondo.parallel.ranks.world import World
from rondo.plan.cost.layout import Layout, Policy, StepBatch
from rondo.plan.cost.traffic import traffic
from rondo.plan.sizes.hf import hf_of
from rondo.plan.sizes.model import ExpertShape, ModelShape
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy

LENGTH, ROWS = 256, 8
DENSE = ModelShape("dense", 8, 64, 8, 8, 8, 128, 512)
SPARSE = replace(DENSE, name="sparse", experts=ExpertShape(8, 2, 64))


@dataclass(frozen=True)
class Case:
    """`axis` is the part of the planner's traffic that is looked at."""

    name: str
    axis: str
    shape: ModelShape
    layout: Layout
    zero: int = 3


def cases(ranks: int) -> list[Case]:
    found = [Case(f"dp, zero {zero}", "data", DENSE, Layout(dp=ranks), zero) for zero in range(4)]
    found += [
        Case("tp", "tensor", DENSE, Layout(tp=ranks)),
        Case("cp, ulysses", "context", DENSE, Layout(cp=ranks, cp_method="ulysses")),
        Case("cp, ring", "context", DENSE, Layout(cp=ranks, cp_method="ring")),
        Case("ep", "expert", SPARSE, Layout(dp=ranks, ep=ranks)),
        Case("pp, 1f1b", "pipeline", DENSE, Layout(pp=ranks, schedule="1f1b"), 2),
    ]
    if ranks <= 4:
        found.append(
            Case("pp, interleaved", "pipeline", DENSE, Layout(pp=ranks, virtual=2, schedule="interleaved"), 2)
        )
    return found


class Sent(TorchDispatchMode):
    """By group: of what goes to other ranks alone, a sum over n ranks being scattered and then gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.by_group: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        space, _, name = func._schema.name.partition("::")
        if space in ("_c10d_functional", "c10d"):
            self._count(name, args)
        return func(*args, **kwargs or {})

    def _count(self, name: str, args: Sequence[Any]) -> None:
        match name:
            case "all_gather_into_tensor" | "reduce_scatter_tensor" | "all_reduce":
                group = _named(args[-1])
                each = args[0].nbytes / (1 if name.startswith("all_gather") else group.size())
                self._add(group, (2 if name == "all_reduce" else 1) * (group.size() - 1) * each)
            case "all_to_all_single":
                group, x, splits = _named(args[-1]), args[0], args[2]
                own = splits[group.rank()] * x[:1].nbytes if len(x) else 0
                self._add(group, x.nbytes - own)
            case "_allgather_base_" | "_reduce_scatter_base_":
                group = _boxed(args[2])
                part = args[1] if name.startswith("_all") else args[0]
                self._add(group, (group.size() - 1) * part.nbytes)
            case "allreduce_":
                group = _boxed(args[1])
                whole = sum(x.nbytes for x in args[0] if x.is_floating_point())
                self._add(group, 2 * (group.size() - 1) / group.size() * whole)
            case "send":
                self._add(_boxed(args[1]), sum(x.nbytes for x in args[0]))

    def _add(self, group: Any, count: float) -> None:
        self.by_group[group.group_name] += round(count)


def _named(name: Any) -> Any:
    return dist.distributed_c10d._resolve_process_group(name)


def _boxed(group: Any) -> Any:
    return dist.ProcessGroup.unbox(group)


def one_rank(rank: int, ranks: int, port: int, given: Sequence[Case], found: Any) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    world = World(rank, ranks, rank, "127.0.0.1", port)
    for number, case in enumerate(given):
        torch.manual_seed(0)
        model = models.new(hf_of(case.shape), dtype=torch.bfloat16)
        layout = LayoutConfig(zero=case.zero, **_degrees(case.layout))
        mesh = join(layout, world, model.config, torch.device("cpu"))
        sent = step(Learner(model, OptimConfig(), mesh), mesh)
        found.put((number, sent))
    dist.barrier()
    dist.destroy_process_group()


def step(learner: Learner, mesh: Mesh) -> int:
    draw = torch.Generator().manual_seed(1)
    documents = [
        Document(torch.randint(0, DENSE.vocab, (LENGTH + 1,), generator=draw).tolist(), [1.0] * (LENGTH + 1))
        for _ in range(ROWS)
    ]
    rows = [row for document in documents for row in pack([document], LENGTH)]
    own = rows[mesh.dp_rank :: mesh.degrees.dp]
    with Sent() as sent:
        learner.forward_backward(own, cross_entropy, valid=ROWS * LENGTH)
        learner.optim_step()
    return sent.by_group.total()


def _degrees(layout: Layout) -> dict[str, Any]:
    facts = dict(vars(layout))
    return facts | {"schedule": "1f1b" if layout.schedule == "none" else layout.schedule}


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    report = Report("wire", limit={"how": "rondo.plan.cost.traffic"})
    ratios = report.columns.setdefault("over the formula", {})
    for ranks in (2,) if options.quick else (2, 4, 8):
        given = cases(ranks)
        say(f"{ranks} ranks")
        queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
        spawn(one_rank, (ranks, _port(), given, queue), ranks)
        most: Counter[int] = Counter()
        while not queue.empty():
            number, sent = queue.get()
            most[number] = max(most[number], sent)
        for number, case in enumerate(given):
            figure = f"{case.name}, {ranks} ranks: KiB"
            policy = Policy(zero=case.zero, precision="bf16")  # type: ignore[arg-type]
            planned = traffic(case.shape, case.layout, policy, StepBatch(ROWS, LENGTH))
            wanted = sum(vars(planned).values())
            report.ours[figure], report.limit[figure] = most[number] / 1024, wanted / 1024
            ratios[figure] = most[number] / wanted
    report.show(options.json)


def _port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
