"""What the device and the host would hold, for tests of the scheduler: every slot says whose key it is."""

from rondo.engine.blocks import GONE
from rondo.engine.plan import Plan
from rondo.engine.request import Request
from rondo.engine.scheduler import Scheduler

Entry = tuple[int, int]
"""Hash of the adapter and of the tokens up to this one, and the weight version that computed it."""


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
                known.append(self.version)
                self._put(request, at)

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

    def lose(self) -> None:
        """The memory of the blocks is given back; what comes instead is empty. The host keeps what it has."""
        self.blocks = [[None] * self.size for _ in self.blocks]

    def check_published(self) -> None:
        """A block that others may find is whole, and of the weights that are in use."""
        pool = self.scheduler.pool
        for block, entries in enumerate(self.blocks):
            if pool.identity(block) is not None:
                assert [entry and entry[1] for entry in entries] == [
                    self.scheduler.weight_version
                ] * self.size

    def check_swapped(self, request: Request) -> None:
        """It has on the host what it had when it gave way."""
        for at in range(request.passed * self.size, request.computed):
            block = request.host[at // self.size - request.passed]
            assert self.host[block][at % self.size] == self._entry(request, at)

    def _entry(self, request: Request, at: int) -> Entry:
        return hash((request.adapter_key, *request.tokens[: at + 1])), self.versions[request][at]

    def _admit(self, request: Request) -> None:
        known = self.versions.setdefault(request, [self.scheduler.weight_version] * request.computed)
        assert len(known) == request.computed

    def _write(self, request: Request) -> None:
        self.versions[request] += [self.version] * request.planned
        for at in range(request.computed, request.computed + request.planned):
            self._put(request, at)

    def _put(self, request: Request, at: int) -> None:
        block = request.blocks[at // self.size]
        assert self.scheduler.pool._refs[block] == 1, "others hold it"
        self.blocks[block][at % self.size] = self._entry(request, at)

    def _read(self, request: Request) -> None:
        window = self.scheduler.pool.window
        first = 0 if window is None else max(0, request.computed + 1 - window.tokens)
        for at in range(first, request.computed + request.planned):
            block = request.blocks[at // self.size]
            assert block != GONE
            assert self.blocks[block][at % self.size] == self._entry(request, at), (request.name, at)
