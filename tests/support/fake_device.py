"""What the device and the host would hold, for tests of the scheduler: every slot says whose key it is."""

from rondo.engine.kv.blocks import GONE, BlockPool
from rondo.engine.schedule.plan import StepPlan
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.scheduler import Scheduler

Entry = tuple[int, int]
"""Hash of the adapter and of the tokens up to this one, and the weight version that computed it."""
Memory = list[list[Entry | None]]
"""By block."""


class FakeDevice:
    """Executes plans as the runner does, and checks that what a request sees is its own, computed when it was."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.size = scheduler.pool.block_size
        self.groups = [self._empty(group.num_blocks) for group in scheduler.pool.groups]
        hosts = [] if scheduler.swap is None else scheduler.swap.hosts
        self.hosts = [self._empty(host.num_blocks) for host in hosts]
        self.version = 0
        self.versions: dict[Request, list[int]] = {}
        """For each position that a running or swapped request has come past, the version it was computed under."""

    def run(self, plan: StepPlan) -> None:
        self.version = self.scheduler.weight_version
        for blocks, copies in zip(self.groups, plan.copies, strict=True):
            sources = [list(blocks[source]) for _, source in copies]
            for (block, _), content in zip(copies, sources, strict=True):
                blocks[block] = content
        for blocks, host, pairs in zip(self.groups, self.hosts, plan.swap_out, strict=False):
            for to, block in pairs:
                host[to] = list(blocks[block])
        for blocks, host, pairs in zip(self.groups, self.hosts, plan.swap_in, strict=False):
            for to, block in pairs:
                blocks[to] = list(host[block])
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
        self.groups = [self._empty(len(blocks)) for blocks in self.groups]

    def check_published(self) -> None:
        """A block that others may find is whole, and of the weights that are in use."""
        current = [self.scheduler.weight_version] * self.size
        for group, blocks in zip(self.scheduler.pool.groups, self.groups, strict=True):
            for block, entries in enumerate(blocks):
                if group.identity(block) is not None:
                    assert [entry and entry[1] for entry in entries] == current

    def check_swapped(self, request: Request) -> None:
        """It has on the host what it had when it gave way."""
        for host, copies in zip(self.hosts, request.host, strict=True):
            for at in range(copies.passed * self.size, request.computed):
                block = copies.blocks[at // self.size - copies.passed]
                assert host[block][at % self.size] == self._entry(request, at)

    def _empty(self, blocks: int) -> Memory:
        return [[None] * self.size for _ in range(blocks)]

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
        for group, blocks, table in zip(self.scheduler.pool.groups, self.groups, request.tables, strict=True):
            block = table.blocks[at // self.size]
            assert group._refs[block] == 1, "others hold it"
            blocks[block][at % self.size] = self._entry(request, at)

    def _read(self, request: Request) -> None:
        for group, blocks, table in zip(self.scheduler.pool.groups, self.groups, request.tables, strict=True):
            for at in range(_first_seen(group, request), request.computed + request.planned):
                block = table.blocks[at // self.size]
                assert block != GONE
                assert blocks[block][at % self.size] == self._entry(request, at), (request.name, at)


def _first_seen(group: BlockPool, request: Request) -> int:
    return 0 if group.window is None else max(0, request.computed + 1 - group.window.tokens)
