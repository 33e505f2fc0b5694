import copy

import pytest
import torch

from rondo.base.errors import Conflict
from rondo.weights.directory import Directory
from rondo.weights.staged import Staged, tensors_of
from support.tiny import tiny_model


class Engine:
    """Notes what it is told, and the weights it had then."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.told = model, list[object]()

    def start_weight_update(self) -> None:
        self.told.append(("start", first(self.model).clone()))

    def finish_weight_update(self, version: int) -> None:
        self.told.append((version, first(self.model).clone()))


def first(model: torch.nn.Module) -> torch.Tensor:
    return next(iter(model.parameters())).detach()


def test_the_old_version_serves_until_the_new_one_is_there_whole() -> None:
    source = tiny_model()
    target = copy.deepcopy(source)
    engine, directory = Engine(target), Directory()
    staged = Staged("policy", source, target, engine, directory)
    for version in (1, 2):
        before = first(target).clone()
        with staged.update(version):
            with torch.no_grad():
                for parameter in source.parameters():
                    parameter.add_(1.0)
            assert torch.equal(first(target), before), "nothing of it is seen meanwhile"
        for own, theirs in zip(tensors_of(source).values(), tensors_of(target).values(), strict=True):
            assert torch.equal(own, theirs)
    assert [name for name, _ in engine.told] == ["start", 1, "start", 2]  # type: ignore[misc]
    (published,) = directory.lookup("policy")
    assert published.version == 2


def test_a_writer_that_fails_leaves_the_engine_as_it_was() -> None:
    source = tiny_model()
    target = copy.deepcopy(source)
    engine = Engine(target)
    staged = Staged("policy", source, target, engine, Directory())
    before = first(target).clone()
    with pytest.raises(RuntimeError), staged.update(1):
        first(source).add_(1.0)
        raise RuntimeError("out of memory")
    assert engine.told == []
    assert torch.equal(first(target), before)


def test_weights_that_change_while_they_are_copied_are_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_model()
    target = copy.deepcopy(source)
    engine = Engine(target)
    staged = Staged("policy", source, target, engine, Directory())
    stage = staged._stage

    def disturbed() -> None:
        stage()
        first(source).add_(1.0)

    monkeypatch.setattr(staged, "_stage", disturbed)
    with pytest.raises(Conflict, match="changed while version 1"), staged.update(1):
        pass
    assert engine.told == []
