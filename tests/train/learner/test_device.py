"""Where a job computes by default: on a GPU if there is one."""

import pytest
import torch

from rondo.base.errors import ConfigError
from rondo.models.devices import device_named
from rondo.parallel.ranks.world import World
from rondo.rl import jobs as rl_jobs
from rondo.rl.config import RlConfig
from rondo.train import jobs
from rondo.train.config import TrainConfig


@pytest.mark.parametrize(("gpus", "kind"), [(0, "cpu"), (2, "cuda")])
def test_by_default_it_is_a_gpu_if_there_is_one(
    gpus: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    for config in (TrainConfig(), RlConfig()):
        assert config.device == "auto"
        assert device_named(config.device).type == kind
    assert jobs.device_of(TrainConfig().device, World(0, 1)).type == kind


def test_each_rank_of_a_machine_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    found = [jobs.device_of("auto", World(rank, 4, local_rank=rank % 2)) for rank in range(4)]
    assert found == taken == [torch.device("cuda", i) for i in (0, 1, 0, 1)]


def test_device_bytes_need_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rl_jobs._check_device(RlConfig())
    with pytest.raises(ConfigError, match="device auto is the CPU here") as error:
        rl_jobs._check_device(RlConfig(device_bytes=1 << 30))
    assert error.value.param == "rl.device_bytes"
