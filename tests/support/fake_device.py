"""What the device and the host would hold, for tests of the scheduler: every slot says whose key it is."""

from rondo.engine.blocks import GONE
from rondo.engine.plan import Plan
from rondo.engine.request import Request
from rondo.engine.scheduler import Scheduler

Entry = tuple[int, int]
"""Hash of the tokens up to this one, and the weight version that computed it."""


class FakeDevice:
    """Executes plans as the runner does, and checks that what a request sees is its own, computed when it was."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.size = scheduler.pool.block_size
        self.blocks: list[list[Entry | None]] = [[None] * self.size for _ in range(scheduler.pool.num_blocks)]
        slots = 0 if scheduler.swap is None else scheduler.swap.host.num_blocks
        self.host: list[list[Entry | None]] = [[None] * self.size for _ in range(slots)]
        self.version = 0
        self.versions: dict[Request, list[int]] = {}
        """For each position that a running or swapped request has come past, the version it was computed under."""

    def run(self, plan: Plan) -> None:
        self.version = self.scheduler.weight_version
        sources = [list(self.blocks[source]) for _, source in plan.copies]
        for (block, _), content in zip(plan.copies, sources, strict=True):
            self.blocks[block] = content
        for host, block in plan.swap_out:
            self.host[host] = list(self.blocks[block])
        for block, host in plan.swap_in:
            self.blocks[block] = list(self.host[host])
        for request in plan.admitted:
            if request.leader is None:
                self._admit(request)
        moved = plan.decodes + plan.chunks
        for request in moved:
            self._write(request)
        for request in moved:
            self._read(request)

    def accept(self, requests: list[Request]) -> None:
        """Before they are settled: proposals that became tokens were computed with the step."""
        for request in requests:
            known = self.versions[request]
            for at in range(len(known), len(request.tokens) - 1):
                self._put(request, at)
                known.append(self.version)

    def settle(self, requests: list[Request]) -> None:
        """Between two steps: samples that ride have come as far as their leader, and who gave its blocks up nowhere."""
        for request in requests:
            if request.leader is not None:
                known = self.versions[request.leader].copy()
                before = self.versions.get(request, [])
                assert before == known[: len(before)], "it rides on other keys than it had"
                self.versions[request] = known
            elif request.state == "waiting" and not request.host:
                self.versions.pop(request, None)

    def _admit(self, request: Request) -> None:
        known = self.versions.setdefault(request, [self.scheduler.weight_version] * request.computed)
        assert len(known) == request.computed

    def _write(self, request: Request) -> None:
        for at in range(request.computed, request.computed + request.planned):
            self._put(request, at)
        self.versions[request] += [self.version] * request.planned

    def _put(self, request: Request, at: int) -> None:
        block = request.blocks[at // self.size]
        assert self.scheduler.pool._refs[block] == 1, "others hold it"
        self.blocks[block][at % self.size] = (hash(tuple(request.tokens[: at + 1])), self.version)

    def _read(self, request: Request) -> None:
        window = self.scheduler.pool.window
        first = 0 if window is None else max(0, request.computed + 1 - window.tokens)
        for at in range(first, request.computed + request.planned):
            block = request.blocks[at // self.size]
            assert block != GONE
            expected = hash(tuple(request.tokens[: at + 1])), self.versions[request][at]
            assert self.blocks[block][at % self.size] == expected, (request.name, at)
