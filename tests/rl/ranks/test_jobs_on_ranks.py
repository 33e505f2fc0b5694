"""RL jobs of several ranks: the job of one process, whatever happens to a rank."""

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rondo import models
from rondo.base.storage.files import atomic_dir
from rondo.base.storage.hashing import sha256_file
from rondo.parallel.config import LayoutConfig
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from support.home import own_home
from support.nursery import Nursery
from support.ports import free_port
from support.served import ADMIN_KEY
from support.tiny import tiny_model, tiny_tokenizer

STEPS = 5
RANKS = 2
TASK = """
import zlib
from rondo.rl.tasks.custom import Custom

def make(random):
    return f"say {random.randint(0, 999)}", {}

def grade(facts, answer):
    return zlib.crc32(answer.encode()) % 5

TASK = Custom(make, grade)
"""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    (folder / "hashed.py").write_text(TASK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(own_home(folder / "alone")))
        jobs.run(jobs.plan(config(folder)))
    return folder


def config(ground: Path, **changes: object) -> RlConfig:
    return RlConfig(
        model=str(ground / "model"),
        task=f"{ground / 'hashed.py'}:TASK",
        prompts_per_step=3,
        samples_per_prompt=4,
        steps=STEPS,
        lr=1e-2,
        eps=1e-3,
        kl=0.05,
        eval_prompts=4,
        max_tokens=6,
        tokens_per_microbatch=256,
        save_every=2,
        deterministic=True,
    ).model_copy(update=changes)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(["rl.ranks._job"]) as nursery:
        yield nursery


@dataclass(frozen=True)
class Ended:
    codes: list[int]
    """Of each rank."""
    out: str
    err: str
    """Of all ranks together."""

    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


def on_ranks(nursery: Nursery, home: Path, work: str, *arguments: object) -> Ended:
    """`work` of `_job` on each rank, with the environment of a launcher that leaves the others alone when one ends."""
    environment = {
        "RONDO_HOME": str(own_home(home)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "GLOO_SOCKET_IFNAME": "lo",
        "RONDO_ADMIN_KEY": ADMIN_KEY,
    }
    said = home / f"said_{len(list(home.glob('*.err')))}"
    pids = [
        nursery.start(
            f"rl.ranks._job:{work}",
            str(said),
            *arguments,
            environment=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(RANKS)
    ]
    codes = [nursery.wait(pid) for pid in pids]
    return Ended(codes, *(Path(f"{said}.{name}").read_text() for name in ("out", "err")))


def flags(config: RlConfig) -> list[str]:
    given = config.model_dump(exclude_unset=True, exclude={"model", "task", "layout"})
    return ["--model", config.model, "--task", config.task, *(f"--rl.{n}={v}" for n, v in given.items())]


def job_of(home: Path) -> Path:
    (job,) = (home / "jobs").iterdir()
    return job


def rows_of(home: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (job_of(home) / "metrics.jsonl").read_text().splitlines()]


def check_same_end(calm: Path, shaken: Path) -> None:
    """The checkpoints of all ranks and the exported models have the same bits."""
    parts = [f"checkpoints/step_{STEPS}/__{rank}_0.distcp" for rank in range(RANKS)]
    for file in (*parts, "export/model.safetensors"):
        assert sha256_file(job_of(calm) / file) == sha256_file(job_of(shaken) / file), file


def test_two_ranks_do_the_job_of_one_and_one_may_die(ground: Path, nursery: Nursery, tmp_path: Path) -> None:
    calm, shaken = tmp_path / "calm", tmp_path / "shaken"
    done = on_ranks(nursery, calm, "command", ["rl", *flags(config(ground))])
    assert done.codes == [0, 0], done.err
    assert done.out.strip() == str(job_of(calm) / "export")
    assert job_of(calm).name == job_of(ground / "alone").name, "ranks do not change the job"
    ours, theirs = rows_of(calm), rows_of(ground / "alone")
    assert [row["step"] for row in ours] == list(range(STEPS + 1))
    for mine, its in zip(ours[1:], theirs[1:], strict=True):
        assert (mine["loss"], mine["reward"]) == pytest.approx((its["loss"], its["reward"]), abs=1e-5)
    found, want = (load_file(job_of(each) / "export/model.safetensors") for each in (calm, ground / "alone"))
    for name in want:
        torch.testing.assert_close(found[name], want[name], atol=5e-6, rtol=0, msg=name)
    assert len(list((job_of(calm) / "rollouts").glob("step_*.zip"))) == STEPS

    text = config(ground).model_dump_json()
    done = on_ranks(nursery, shaken, "job", text, "1:3:dies")
    assert done.codes[0] > 0
    assert done.codes[1] == -signal.SIGKILL
    assert any("rank 1 on" in line for line in done.errors()), done.err
    assert json.loads((job_of(shaken) / "status.json").read_text())["state"] == "failed"
    done = on_ranks(nursery, shaken, "job", text, "0:4:is_interrupted")
    assert done.out.strip() == f"step 4 of {STEPS} is saved", done.err
    done = on_ranks(nursery, shaken, "job", text)
    assert done.codes == [0, 0], done.err
    check_same_end(calm, shaken)


def test_a_failed_rank_ends_all_with_its_reason(ground: Path, nursery: Nursery, tmp_path: Path) -> None:
    text = config(ground, layout=LayoutConfig(tp=2)).model_dump_json()
    done = on_ranks(nursery, tmp_path, "job", text, "1:2:fails")
    assert all(code > 0 for code in done.codes)
    (line,) = done.errors()
    assert line.startswith("error: rank 1 on ")
    assert line.endswith("the disk is on fire")
    assert json.loads((job_of(tmp_path) / "status.json").read_text())["state"] == "failed"


@pytest.mark.long
def test_a_killed_ppo_job_with_a_critic_ends_with_the_same_bits(
    ground: Path, nursery: Nursery, tmp_path: Path
) -> None:
    given = config(ground).model_dump(exclude_unset=True) | {"algorithm": "ppo", "minibatches": 2}
    text = RlConfig(**given).model_dump_json()
    assert RlConfig(**given).critic.kind == "separate"
    calm, shaken = tmp_path / "calm", tmp_path / "shaken"
    done = on_ranks(nursery, calm, "job", text)
    assert done.codes == [0, 0], done.err
    assert on_ranks(nursery, shaken, "job", text, "1:3:dies").codes[1] == -signal.SIGKILL
    assert rows_of(shaken)[-1]["step"] == 3
    done = on_ranks(nursery, shaken, "job", text)
    assert done.codes == [0, 0], done.err
    check_same_end(calm, shaken)
    for mine, its in zip(rows_of(calm)[1:], rows_of(shaken)[1:], strict=True):
        assert mine["critic/loss"] == its["critic/loss"]


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_in_a_rollout_or_a_push_ends_all_and_the_job_resumes(
    ground: Path, nursery: Nursery, tmp_path: Path, rank: int
) -> None:
    calm, shaken, text = tmp_path / "calm", tmp_path / "shaken", config(ground).model_dump_json()
    assert on_ranks(nursery, calm, "job", text).codes == [0, 0]
    check_killed(nursery, shaken, text, rank)
    check_same_end(calm, shaken)


def check_killed(nursery: Nursery, home: Path, text: str, rank: int) -> None:
    """A rank is killed in the rollouts of step 3 and, once the job is resumed, in a push. Then the job ends."""
    for fault in (f"{rank}:3:dies_in_rollout", f"{rank}:2:dies_in_push"):
        done = on_ranks(nursery, home, "job", text, fault)
        assert done.codes[rank] == -signal.SIGKILL, done.err
        assert done.codes[1 - rank] != 0, done.err
        if rank:
            assert any("rank 1 on" in line for line in done.errors()), done.err
            assert json.loads((job_of(home) / "status.json").read_text())["state"] == "failed"
    done = on_ranks(nursery, home, "job", text)
    assert done.codes == [0, 0], done.err
