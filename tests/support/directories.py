"""The suite of every weight directory. `make(lease_seconds)` opens another client of the same directory."""

import threading
import time
from collections.abc import Callable

import pytest

from rondo.base.errors import Conflict, NotFound
from rondo.weights.directory import Published, WeightDirectory, newest_version
from rondo.weights.directory.lease import Lease
from support.waiting import wait_until

Make = Callable[[float], WeightDirectory]


class DirectorySuite:
    def test_a_version_has_holders_with_one_checksum(self, make: Make) -> None:
        one, two = make(30), make(30)
        entry = Published("m", 3, "learner", "sum", 12, 1, "shm:/x")
        one.publish(entry)
        two.publish(Published("m", 3, "replica", "sum", 12, 1))
        assert sorted(each.owner for each in one.lookup("m")) == ["learner", "replica"]
        assert entry in two.lookup("m", 3)
        with pytest.raises(Conflict, match="has checksum sum"):
            two.publish(Published("m", 3, "other", "different"))
        one.withdraw("m", 3, "learner")
        assert [each.owner for each in two.lookup("m")] == ["replica"]
        two.withdraw("m", 3, "replica")
        with pytest.raises(NotFound, match="no version of m"):
            one.lookup("m")

    def test_only_the_writer_creates_versions(self, make: Make) -> None:
        one, two = make(30), make(30)
        first = one.claim("m", "one")
        one.publish(Published("m", 1, "one", "a"), token=first)
        with pytest.raises(Conflict, match="has the writer one"):
            two.claim("m", "two")
        with pytest.raises(Conflict, match="fencing token"):
            two.publish(Published("m", 2, "two", "b"))
        second = one.claim("m", "one")
        with pytest.raises(Conflict, match="fencing token"):
            one.publish(Published("m", 2, "one", "b"), token=first)
        one.publish(Published("m", 2, "one", "b"), token=second)
        two.publish(Published("m", 2, "two", "b"))  # a copy of it

    def test_a_claim_that_another_one_replaced_is_not_renewed(self, make: Make) -> None:
        """Also if both writers have the same name."""
        one, two = make(30), make(30)
        first = one.claim("m", "w")
        first = one.claim("m", "w", first)
        second = two.claim("m", "w")
        with pytest.raises(Conflict, match="has the writer w already"):
            one.claim("m", "w", first)
        two.check("m", second)
        one.release("m", first)
        two.check("m", second)
        two.release("m", second)
        one.claim("m", "other")

    def test_an_older_version_is_refused(self, make: Make) -> None:
        one, two = make(30), make(30)
        token = one.claim("m", "w")
        one.publish(Published("m", 4, "w", "a"), token)
        one.publish(Published("m", 5, "w", "b"), token)
        two.publish(Published("m", 4, "late", "a"))  # a copy of a version that has a holder
        for given in (token, None):
            with pytest.raises(
                Conflict, match=r"version 3 of m is not newer than version 5.* push version 6"
            ):
                one.publish(Published("m", 3, "w", "c"), given)
        with pytest.raises(Conflict, match="version 4 of m is not newer than version 5"):
            one.publish(Published("m", 4, "w", "a"), token)
        assert (newest_version(two, "m"), newest_version(two, "m/other")) == (5, -1)
        assert {each.owner for each in two.lookup("m", 4)} == {"w", "late"}

    def test_a_version_without_a_holder_is_replaced(self, make: Make) -> None:
        one, two = make(30), make(30)
        one.publish(Published("m", 2, "w", "a", 8, 1))
        one.withdraw("m", 2, "w")
        assert newest_version(two, "m") == -1
        two.publish(Published("m", 1, "w", "c"))
        two.publish(Published("m", 2, "w", "b", 9, 2))
        [found] = one.lookup("m")
        assert (found.version, found.checksum, found.nbytes) == (2, "b", 9)
        with pytest.raises(Conflict, match="has checksum b"):
            one.publish(Published("m", 2, "other", "a"))

    def test_a_dead_owner_and_its_claim_vanish(self, make: Make) -> None:
        dead, alive = make(1), make(30)
        token = dead.claim("m", "dead")
        dead.publish(Published("m", 1, "dead", "a"), token=token)
        alive.publish(Published("m", 1, "alive", "a"))
        wait_until(lambda: [each.owner for each in alive.lookup("m")] == ["alive"], 60)

        def claimed() -> bool:
            try:
                alive.claim("m", "alive")
            except Conflict:
                return False
            return True

        wait_until(claimed, 60)
        with pytest.raises(Conflict, match="fencing token"):
            dead.publish(Published("m", 2, "dead", "b"), token=token)

    def test_a_renewed_lease_lasts(self, make: Make) -> None:
        owner = make(2)
        owner.publish(Published("m", 1, "owner", "a"))
        until = time.monotonic() + 5
        while time.monotonic() < until:
            owner.renew("owner")
            time.sleep(0.2)
        assert owner.lookup("m")

    def test_a_watch_sees_the_next_version(self, make: Make) -> None:
        writer, reader = make(30), make(30)
        writer.publish(Published("m", 1, "w", "a"))
        assert [each.version for each in reader.watch("m", 0, 60)] == [1]
        assert reader.watch("m", 1, 0.1) == []
        thread = threading.Timer(0.3, lambda: writer.publish(Published("m", 2, "w", "b")))
        thread.start()
        assert [each.version for each in reader.watch("m", 1, 60)] == [2]
        thread.join()

    def test_an_expired_lease_is_repaired(self, make: Make) -> None:
        """As after a suspension: the entries are published again, unless another writer has claimed the model."""
        directory, other = make(1), make(30)
        token = [directory.claim("m", "w")]

        def repair() -> None:
            token[0] = directory.claim("m", "w")
            directory.publish(Published("m", 1, "w", "a"), token[0])

        repair()
        lease = Lease(directory, "w", 10**6, repair)
        wait_until(lambda: not other.watch("m", 0, 0), 60)

        def repaired() -> bool:
            lease.renew()
            return [each.owner for each in other.watch("m", 0, 0)] == ["w"]

        wait_until(repaired, 60)
        wait_until(lambda: not other.watch("m", 0, 0), 60)
        other.claim("m", "other")
        with pytest.raises(Conflict, match="the writer is other"):
            directory.check("m", token[0])
        with pytest.raises(Conflict, match="the writer is other"):
            directory.publish(Published("m", 1, "w", "a"), token[0])
        lease.renew()
        assert not other.watch("m", 0, 0)
        lease.end()
