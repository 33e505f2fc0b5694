"""Running requests in order, each with its blocks and a row of sampling parameters.

Samples of one prompt run as one request, their leader, until they draw different tokens. Followers have a row, but no
blocks.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from operator import attrgetter

from rondo.engine.kv.blocks import Table
from rondo.engine.kv.groups import GroupedPool, Moves
from rondo.engine.kv.prefixes import Prefixes
from rondo.engine.schedule.request import Request

_order: Callable[[Request], tuple[int, int]] = attrgetter("order")


class Running:
    def __init__(self, pool: GroupedPool, prefixes: Prefixes, size: int) -> None:
        self.leaders: list[Request] = []
        self._pool = pool
        self._prefixes = prefixes
        self.size = size
        self._rows = list(range(size - 1, -1, -1))
        self._copies: list[dict[int, int]] = [{} for _ in pool.groups]

    @property
    def count(self) -> int:
        """Number of running samples, followers included."""
        return self.size - len(self._rows)

    @property
    def full(self) -> bool:
        return not self._rows

    def enter(self, request: Request, found: list[Table]) -> None:
        """Starts a request with its cached blocks `found`."""
        request.state = "running"
        request.row = self._rows.pop()
        request.tables = found
        request.published = len(found[0].blocks)
        insort(self.leaders, request, key=_order)

    def vacate(self, request: Request) -> None:
        """Releases the request's blocks and row; the caller removes it from the running requests."""
        self._pool.release(request.tables)
        self._prefixes.unclaim(request)
        self._rows.append(request.row)
        request.tables = []
        request.published = 0
        request.planned = 0
        request.row = -1

    def end(self, requests: Sequence[Request]) -> None:
        """Ends finished requests; the followers of a finished leader continue."""
        leaders = [request for request in requests if request.leader is None]
        for request in requests:
            request.state = "finished"
            if request.leader is not None:
                request.leader.followers.remove(request)
                self.detach(request)
        for leader in leaders:
            self._hand_over(leader)
            self.vacate(leader)
        self.leaders = [request for request in self.leaders if request.state == "running"]

    def attach(self, leader: Request, rider: Request) -> None:
        """Runs `rider`, which has the same tokens as `leader`, as its follower."""
        rider.state = "running"
        rider.row = self._rows.pop()
        rider.leader = leader
        leader.followers.append(rider)

    def detach(self, rider: Request) -> None:
        rider.leader = None
        self._rows.append(rider.row)
        rider.row = -1

    def fork(self, leader: Request) -> list[Request]:
        """Forks followers that drew another token than the leader: one new leader for each different token, with its
        other samples as followers. Returns the samples for which there was no free block."""
        branches: dict[int, list[Request]] = {}
        for rider in leader.followers:
            branches.setdefault(rider.tokens[-1], []).append(rider)
        leader.followers = branches.pop(leader.tokens[-1], [])
        out: list[Request] = []
        for branch in branches.values():
            if not self._fork(leader, branch):
                for rider in branch:
                    self.detach(rider)
                out += branch
        return out

    def take_copies(self) -> Moves:
        """Block copies of the next step, for samples that forked in the middle of a block."""
        copies = [list(each.items()) for each in self._copies]
        for each in self._copies:
            each.clear()
        return copies

    def _fork(self, leader: Request, branch: list[Request]) -> bool:
        request, *followers = branch
        moves = self._pool.fork(leader, request)
        if moves is None:
            return False
        for copies, pairs in zip(self._copies, moves, strict=True):
            copies.update(pairs)
        request.follow(leader)
        self._lead(request, followers)
        return True

    def _hand_over(self, leader: Request) -> None:
        """Makes the first follower the leader, with the old leader's blocks."""
        if not leader.followers:
            return
        heir, *others = leader.followers
        leader.followers = []
        heir.follow(leader)
        heir.tables, leader.tables = leader.tables, []
        heir.claim, leader.claim = leader.claim, None
        self._lead(heir, others)

    def _lead(self, request: Request, followers: list[Request]) -> None:
        request.leader = None
        request.followers = followers
        for rider in followers:
            rider.leader = request
        insort(self.leaders, request, key=_order)
