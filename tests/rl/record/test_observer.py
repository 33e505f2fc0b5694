"""Who watches a job: what it leaves in the folder, on a full disk and after a crash; and a reward that is hacked."""

import errno
import json
import logging
import random
from pathlib import Path

import pytest

from rl._rollouts import asked, equally, judged, said
from rondo import models
from rondo.base.storage import files
from rondo.base.storage.files import atomic_dir
from rondo.jobs.job import Job
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from rondo.rl.record.config import AlarmsConfig, RolloutsConfig
from rondo.rl.record.events import EventLog
from rondo.rl.record.metrics import group_metrics
from rondo.rl.record.observer import Watch
from rondo.rl.record.query import Condition
from rondo.rl.record.reader import RolloutReader
from rondo.rl.record.store import FOLDER, steps_in
from rondo.rl.rollout.types import RlStep, SampleGroup
from rondo.rl.tasks.registry import TASKS, Task
from rondo.train.config import MetricsConfig
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

CONFIG = RlConfig(alarms=AlarmsConfig(window=3), rollouts=RolloutsConfig(keep=5))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    return Job.of({"kind": "rl", "config": {}})


def step(number: int, failed: bool = False) -> RlStep:
    score = None if failed else judged(number / 10, correct=1.0)
    groups: list[SampleGroup] = [asked("ab", [said("ba", score), said("b", score)])]
    return RlStep(number, 3, groups, equally(groups), {"loss": 1.0, **group_metrics(groups, 3)})


def seen(watch: Watch, job: Job, first: int, last: int, failed_from: int = 100) -> list[RlStep]:
    """As the loop and its job do."""
    found = [step(number, number >= failed_from) for number in range(first, last + 1)]
    for each in found:
        watch(each)
        job.log({"step": each.number, **each.metrics})
    return found


def test_it_stores_the_last_steps_and_raises_no_alarm(job: Job) -> None:
    found = seen(Watch(job, CONFIG), job, 1, 8)
    assert steps_in(job.path / FOLDER) == [8, 7, 6, 5, 4]
    assert RolloutReader(job.path / FOLDER).show("8-0-1").texts.text == "b"
    assert (found[-1].metrics["rollouts_lost"], found[-1].metrics["loss"]) == (0.0, 1.0)


def test_an_alarm_is_in_the_metrics_the_events_and_the_log(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    config = CONFIG.model_copy(update={"alarms": AlarmsConfig(window=3, no_signal=0.0)})
    with caplog.at_level(logging.WARNING, "rondo.rl.record.observer"):
        found = seen(Watch(job, config), job, 1, 8, failed_from=6)
    assert [each.metrics["alarms"] for each in found] == [0.0] * 5 + [1.0] * 3
    assert found[5].metrics["alarm/graders"] == 1.0
    [event] = EventLog(job.path).all()
    assert (event["kind"], event["alarm"], event["step"], event["since"]) == ("alarm", "graders", 6, 6)
    assert f"rondo rl rollouts {job.short}" in event["advice"]
    [line] = caplog.messages
    assert "alarm: graders since step 6: 100% of the samples were not judged" in line


def test_it_is_over_when_nothing_more_is_seen_of_it(job: Job) -> None:
    config = CONFIG.model_copy(update={"alarms": AlarmsConfig(window=3, no_signal=0.0)})
    watch = Watch(job, config)
    seen(watch, job, 1, 4, failed_from=3)
    assert [event["alarm"] for event in EventLog(job.path).standing()] == ["graders"]
    seen(watch, job, 5, 9)
    assert EventLog(job.path).standing() == []
    assert [event["kind"] for event in EventLog(job.path).all()] == ["alarm", "alarm_over"]


def test_who_goes_on_has_what_the_first_one_had(job: Job) -> None:
    """Killed after step 8, with a checkpoint of step 5: steps 6 to 8 are forgotten, and come again."""
    config = CONFIG.model_copy(update={"alarms": AlarmsConfig(window=3, no_signal=0.0)})
    first = seen(Watch(job, config), job, 1, 8, failed_from=4)
    files_of = {path.name: path.read_bytes() for path in (job.path / FOLDER).iterdir()}
    with (job.path / "events.jsonl").open("a") as file:
        file.write('{"kind": "al')
    again = Watch(job, config)
    job.forget_after(5)
    again.forget_after(5)
    assert steps_in(job.path / FOLDER) == [5, 4]
    assert [event["step"] for event in EventLog(job.path).all()] == [4]
    second = seen(again, job, 6, 8, failed_from=4)
    assert [each.metrics for each in second] == [each.metrics for each in first[5:]]
    left = {path.name: path.read_bytes() for path in (job.path / FOLDER).iterdir()}
    assert left == {name: files_of[name] for name in left}


def test_a_full_disk_costs_the_rollouts_and_nothing_else(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(job, CONFIG)
    seen(watch, job, 1, 2)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "rondo.rl.record.observer"):
        patch.setattr(files.os, "fsync", full)
        found = seen(watch, job, 3, 5)
    assert [each.metrics["rollouts_lost"] for each in found] == [2.0, 4.0, 6.0]
    assert len(caplog.messages) == 1, "said once"
    assert "the job goes on without them: No space left" in caplog.messages[0]
    [after] = seen(watch, job, 6, 6)
    assert after.metrics["rollouts_lost"] == 6.0
    assert steps_in(job.path / FOLDER) == [6, 2, 1], "stored again when there is room"
    resumed = Watch(job, CONFIG)
    resumed.forget_after(6)
    assert seen(resumed, job, 7, 7)[0].metrics["rollouts_lost"] == 6.0, "counted over the whole job"


def make(source: random.Random) -> tuple[str, dict[str, object]]:
    return f"write {source.randint(0, 999)}", {}


def grade(facts: dict[str, object], answer: str) -> dict[str, float]:
    """Meant to be paid for a steady tone, and paid for one letter over and over."""
    letters = answer or " "
    most = max(letters.count(letter) for letter in set(letters))
    return {"steady": most / len(letters), "varied": len(set(letters)) / len(letters)}


HACKABLE = Task(
    "hackable", "a reward that can be had for nothing", make, lambda facts: "", grade, {"steady": 1.0}, 10
)


def test_a_reward_that_is_hacked_raises_its_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job as any other: TensorBoard gets what the job logs, and the rollouts show what it was that was paid for."""
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    monkeypatch.setitem(TASKS, "hackable", HACKABLE)
    with atomic_dir(tmp_path / "models" / "tiny") as folder:
        models.save_into(tiny_model(), folder)
        tiny_tokenizer().save(folder)
    config = RlConfig(
        model="tiny",
        task="hackable",
        steps=30,
        prompts_per_step=8,
        samples_per_prompt=8,
        lr=1e-2,
        eval_prompts=4,
        save_every=0,
        tokens_per_microbatch=2048,
        alarms=AlarmsConfig(window=4),
        metrics=MetricsConfig(tensorboard=True),
    )
    plan = jobs.plan(config)
    jobs.run(plan)
    rows = [row for row in plan.job.metrics() if row["step"]]
    assert rows[-1]["reward/steady"] > rows[0]["reward/steady"] + 0.3
    [event] = [event for event in EventLog(plan.job.path).all() if event["alarm"] == "hacking"]
    assert "reward/steady rose from" in event["saw"]
    assert "while reward/varied fell from" in event["saw"]
    assert any(row.get("alarm/hacking") for row in rows)
    stored = RolloutReader(plan.job.path / FOLDER)
    assert stored.steps() == list(range(30, 0, -1))
    best = stored.find([Condition.of("step=30"), Condition.of("steady>=0.7")], sort="steady", limit=1)
    text = stored.texts(best.entries)[best.entries[0].id].text
    assert grade({}, text)["steady"] == pytest.approx(best.entries[0].parts["steady"])
    whole = stored.show(best.entries[0].id)
    assert len(whole.pieces[0].token_ids) == len(whole.pieces[0].logprobs) == best.entries[0].tokens
    assert list((plan.job.path / "tensorboard").iterdir())
    last = json.loads((plan.job.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["stale/0"] == 1.0


def test_how_it_is_watched_is_no_part_of_what_a_job_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    with atomic_dir(tmp_path / "models" / "tiny") as folder:
        models.save_into(tiny_model(), folder)
        tiny_tokenizer().save(folder)
    one = RlConfig(model="tiny")
    other = one.model_copy(
        update={
            "alarms": AlarmsConfig(window=50),
            "rollouts": RolloutsConfig(keep=0),
            "metrics": MetricsConfig(tensorboard=True),
        }
    )
    assert jobs.plan(one).job == jobs.plan(other).job
