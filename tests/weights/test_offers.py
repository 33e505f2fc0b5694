"""The versions that a process holds for readers on other hosts."""

from pathlib import Path

from rondo.weights.transports.offers import READER_SECONDS, Offers
from rondo.weights.transports.segment import Held


class Versions:
    """Offers of numbered versions, with a clock."""

    def __init__(self):
        self.now, self.held = 0.0, []
        self.offers = Offers(lambda: self.now)

    def offer(self, *versions):
        for version in versions:
            self.held.append(version)
            release = lambda version=version: self.held.remove(version)  # noqa: E731
            self.offers.offer(Held(Path("/none"), version, 0, release))


def test_a_version_is_held_until_its_readers_leave():
    made = Versions()
    made.offer(1)
    assert made.offers.find("latest", "a").held.version == 1
    assert made.offers.find("1", "b").held.version == 1
    made.offer(2, 3)
    assert made.held == [1, 3]
    assert made.offers.find("2") is None
    made.offers.leave("1", "a")
    made.offers.leave("1", "a")
    assert made.offers.find("1", "b").held.version == 1
    made.offers.leave("1", "b")
    assert made.held == [3]
    assert made.offers.find("latest").held.version == 3
    made.offers.close()
    assert made.held == []
    assert made.offers.held is None


def test_one_version_beside_the_current_one_is_held_and_it_is_the_oldest():
    made = Versions()
    for version in range(1, 6):
        made.offer(version)
        made.offers.find("latest", f"reader {version}")
    assert made.held == [1, 5]
    made.offers.leave("1", "reader 1")
    made.offer(6)
    assert made.held == [5, 6]


def test_a_reader_without_progress_loses_its_version():
    made = Versions()
    made.offer(1)
    read = made.offers.find("1", "slow")
    made.offers.find("1", "dead")
    made.offer(2, 3)
    made.now = READER_SECONDS - 1
    made.offers.progress(read, "slow")
    made.now += READER_SECONDS - 1
    made.offers.expire()
    assert made.held == [1, 3]
    assert read.readers.keys() == {"slow"}
    made.offers.progress(read, "dead")
    made.now += 2
    made.offers.expire()
    assert made.held == [3]
