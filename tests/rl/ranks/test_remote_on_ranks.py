"""RL jobs of two ranks with a remote engine, which the first rank drives."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rl.ranks.test_jobs_on_ranks import (
    STEPS,
    check_killed,
    check_same_end,
    config,
    ground,
    job_of,
    nursery,
    on_ranks,
    rows_of,
)
from rondo.engine.config import EngineConfig
from rondo.rl.remote.config import FarConfig
from rondo.server.config import ServerConfig
from server.running import Running, start
from support.nursery import Nursery
from support.served import ADMIN_KEY

__all__ = ["ground", "nursery"]


@pytest.fixture(scope="module")
def operated(ground: Path) -> Iterator[Running]:
    engine = EngineConfig(max_num_seqs=12, deterministic=True)
    yield from start(ground / "model", engine, ServerConfig(port=0, admin_key=ADMIN_KEY))


@pytest.fixture(scope="module")
def calm(ground: Path, operated: Running, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Home of a job to which nothing happened."""
    home = tmp_path_factory.mktemp("calm")
    before = operated.engine.weight_version
    done = on_ranks(nursery, home, "job", text_of(ground, operated))
    assert done.codes == [0, 0], done.err
    assert operated.engine.weight_version >= before + STEPS + 1
    return home


def text_of(ground: Path, operated: Running) -> str:
    return config(ground, engine=FarConfig(url=(operated.url,), wait=60)).model_dump_json()


def test_two_ranks_with_a_remote_engine_do_the_job_of_one_process(ground: Path, calm: Path) -> None:
    alone = ground / "alone"
    assert job_of(calm).name == job_of(alone).name, "neither ranks nor engines change the job"
    for mine, its in zip(rows_of(calm)[1:], rows_of(alone)[1:], strict=True):
        assert (mine["loss"], mine["reward"]) == pytest.approx((its["loss"], its["reward"]), abs=1e-5)
        assert mine["engine/lost"] == 0
    found, want = (load_file(job_of(each) / "export/model.safetensors") for each in (calm, alone))
    for name in want:
        torch.testing.assert_close(found[name], want[name], atol=5e-6, rtol=0, msg=name)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_in_a_rollout_or_a_push_leaves_the_engine_usable(
    ground: Path, operated: Running, calm: Path, nursery: Nursery, tmp_path: Path, rank: int
) -> None:
    check_killed(nursery, tmp_path, text_of(ground, operated), rank)
    check_same_end(calm, tmp_path)
