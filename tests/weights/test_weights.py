import pytest
import torch
from torch import Tensor

from rondo.base.errors import ConfigError, Conflict, NotFound
from rondo.weights.checksum import checksum
from rondo.weights.directory import Directory, Published
from rondo.weights.in_place import InPlace, Receiver


class FakeEngine:
    def __init__(self) -> None:
        self.version, self.updating = 0, False

    def start_weight_update(self) -> None:
        assert not self.updating
        self.updating = True

    def finish_weight_update(self, version: int) -> None:
        self.version, self.updating = version, False


def setup() -> tuple[dict[str, Tensor], FakeEngine, InPlace, Receiver]:
    tensors = {"a": torch.randn(3, 4), "b": torch.randn(5)}
    engine = FakeEngine()
    return (
        tensors,
        engine,
        InPlace("m", tensors.items, Directory(), verify=True),
        Receiver("engine", engine, tensors.items),
    )


def test_an_update_pauses_the_engine_and_publishes_one_version() -> None:
    tensors, engine, weights, receiver = setup()
    for version in (1, 2):
        with weights.update(version, [receiver]):
            assert engine.updating
            assert engine.version == version - 1
            tensors["a"] += 1
        (found,) = weights.directory.lookup("m")
        assert engine.version == found.version == version
        assert not engine.updating
        assert found.checksum == checksum(tensors.items())
        assert (found.tensors, found.nbytes) == (2, sum(each.nbytes for each in tensors.values()))
    with pytest.raises(NotFound, match="no version 1"):
        weights.directory.lookup("m", 1)


def test_a_failed_update_leaves_the_engine_paused_and_publishes_nothing() -> None:
    _, engine, weights, receiver = setup()
    with pytest.raises(RuntimeError), weights.update(1, [receiver]):
        raise RuntimeError("out of memory")
    assert engine.updating
    assert engine.version == 0
    with pytest.raises(NotFound):
        weights.directory.lookup("m")


@pytest.mark.parametrize("change", ["copy", "missing", "view"])
def test_tensors_that_are_not_shared_are_named_and_nobody_is_paused(change: str) -> None:
    tensors, engine, weights, _ = setup()
    theirs = dict(tensors)
    if change == "copy":
        theirs["b"] = tensors["b"].clone()
    elif change == "missing":
        del theirs["b"]
    else:
        theirs["b"] = tensors["b"][:3]
    with pytest.raises(ConfigError, match=r"does not share its tensors .*\(b\)"):
        weights.plan([Receiver("engine", engine, theirs.items)])
    assert not engine.updating


def test_a_checksum_sees_every_bit_name_shape_and_type() -> None:
    x = torch.arange(6.0)
    base = checksum([("x", x)])
    assert base == checksum([("x", x.clone())])
    flipped = x.clone()
    flipped.view(torch.int32)[3] ^= 1
    for other in (
        ("y", x),
        ("x", flipped),
        ("x", x.view(2, 3)),
        ("x", x.to(torch.bfloat16)),
        ("x", x.long()),
    ):
        assert checksum([other]) != base
    pair = [("x", x), ("e", torch.empty(0))]
    assert checksum(pair) == checksum(pair[::-1])


def test_a_dead_owners_entries_vanish() -> None:
    now = 0.0
    directory = Directory(lease_s=10, clock=lambda: now)
    directory.publish(Published("m", 1, "one", "sum"))
    directory.publish(Published("m", 1, "two", "sum"))
    now = 8.0
    directory.renew("two")
    now = 12.0
    assert [entry.owner for entry in directory.lookup("m")] == ["two"]
    with pytest.raises(Conflict, match="the lease of one has expired"):
        directory.renew("one")
    directory.renew("one")
    now = 20.0
    with pytest.raises(NotFound, match="no version of m"):
        directory.lookup("m")


def test_one_version_has_one_checksum() -> None:
    directory = Directory()
    directory.publish(Published("m", 3, "one", "sum"))
    with pytest.raises(Conflict, match="version 3 of m has checksum sum at one"):
        directory.publish(Published("m", 3, "two", "other"))
