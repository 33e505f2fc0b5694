"""Pushes of a policy that is divided over ranks, for `support.launch`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rl.ranks._steps import SMALL
from rondo import models
from rondo.base.errors import StorageError
from rondo.models import Decoder
from rondo.models.files.mapping import to_hf
from rondo.parallel.config import LayoutConfig
from rondo.parallel.ranks.mesh import join
from rondo.parallel.ranks.world import read_world
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.remote.config import FarConfig
from rondo.rl.remote.offer import WeightOffer
from rondo.rl.remote.push import RemotePush
from rondo.rl.remote.rank_policy import rank_policy
from rondo.rl.rollout.async_collector import AsyncCollector
from rondo.rl.rollout.rank_collectors import FirstRankCollector
from rondo.rl.rollout.replica import WeightReplica
from rondo.rl.update.division import RankDivision
from rondo.train.learner.learner import Learner
from rondo.weights.config import WeightsConfig
from rondo.weights.publisher import Publisher
from support.far import Lengths
from support.served import ADMIN_KEY
from support.tiny import tiny_model, tiny_tokenizer

FAR = FarConfig(url=("http://127.0.0.1:1",))


def division_of(model: Decoder, layout: Mapping[str, Any]) -> RankDivision:
    return RankDivision(join(LayoutConfig(**layout), read_world(), model.config, torch.device("cpu")))


def segments(
    folder: Path, cases: Sequence[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]
) -> tuple[list[list[str]], list[int]]:
    """For each (layout, settings, changes of the model): the tensors of a version that all ranks write, and of the
    folder that `gather` writes, which differ from the gathered copy; and the bytes that this rank wrote."""
    found, written = [], []
    for number, (layout, settings, changes) in enumerate(cases):
        model = tiny_model(**changes)
        division = division_of(model, layout)
        place = folder / str(number)
        if division.first:
            place.mkdir()
        weights = WeightsConfig(folder=str(folder), bucket_bytes=2000)
        config = RlConfig(**SMALL | settings, engine=FAR.model_copy(update={"weights": weights}))
        policy = rank_policy(model, config, division.mesh)
        assert policy is not None, layout
        replica = WeightReplica(model, config, torch.device("cpu"), here=division.first)
        learner = Learner(model, config, division.mesh)
        policy.attach(learner)
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.mul_(1.01)
        publisher = Publisher("m", {}, weights, group=policy.group)
        publisher.register(policy.shards)
        written.append(publisher.push(1 if division.first else 0).written)
        policy.gather(place / "gathered")
        replica.pull(learner)
        if division.first:
            assert replica.model is not None
            expected = dict(to_hf(replica.model))
            written_by = (publisher.folder / "0", place / "gathered")
            found += [differing(expected, load_file(each / "model.safetensors")) for each in written_by]
        publisher.close()
    return found, written


def differing(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    if expected.keys() != found.keys():
        return sorted(expected.keys() ^ found.keys())
    return [
        name
        for name, x in expected.items()
        if x.dtype != found[name].dtype or not torch.equal(x, found[name])
    ]


def steps(url: str, cases: Sequence[tuple[Mapping[str, Any], str, str]]) -> dict[str, Tensor]:
    """For each (layout, fault of the first rank, expected transport), two steps with a remote engine. On the first rank
    the version that the engine was offered last is compared with the learner's weights, which are returned. Faults:
    memory is `full` from the beginning or `later`, ranks are on several `hosts`, the engine takes `folders` only."""
    os.environ["RONDO_ADMIN_KEY"] = ADMIN_KEY
    whole: dict[str, Tensor] = {}
    for layout, fault, transport in cases:
        model = tiny_model()
        division = division_of(model, layout)
        far = FarConfig(url=(url,), wait=30, weights=WeightsConfig(bucket_bytes=2000))
        with pytest.MonkeyPatch.context() as patch:
            whole = _steps(model, RlConfig(**SMALL, engine=far), division, fault, transport, patch)
    return whole


def _steps(
    model: Decoder,
    config: RlConfig,
    division: RankDivision,
    fault: str,
    transport: str,
    patch: pytest.MonkeyPatch,
) -> dict[str, Tensor]:
    first = division.first
    if fault == "hosts" and not first:
        patch.setattr("rondo.rl.remote.rank_policy.socket.gethostname", lambda: "elsewhere")
    if fault == "full" and first:
        patch.setattr("rondo.weights.transports.segment._allocate", _full)
    if fault == "folders" and first:
        patch.setattr(WeightOffer, "transports", lambda *_: ("folder",))
    loop = Loop(model, tiny_tokenizer(), Lengths(), config, division.mesh)
    if fault == "later" and first:
        patch.setattr(Publisher, "_first_free", _full)
    for _ in range(2):
        loop.step()
    whole = {name: x.clone() for name, x in loop.learner.gathered(torch.float32)}
    if first:
        assert isinstance(loop.collector, FirstRankCollector)
        assert isinstance(loop.collector._own, AsyncCollector)
        pushes = loop.collector._own.pushes
        assert isinstance(pushes, RemotePush)
        assert (pushes._ranks is None) == (fault == "hosts")
        [engine] = pushes._pool.engines
        assert engine.transport == transport, (fault, engine.transport)
        offer = pushes._pool._offer
        assert offer is not None
        folder = offer._folder if transport == "folder" else Path(offer.source.removeprefix("shm:"))
        assert folder is not None
        saved = dict(models.load(folder).named_parameters())
        assert not differing(whole, saved), fault
    loop.close()
    return whole


def _full(*_: Any, **__: Any) -> Any:
    raise StorageError("the memory is full")
