"""A submitted job whose training meets a full disk."""

from pathlib import Path

import pytest

from control.jobs.running import CONFIG, state, until
from rondo.base.storage.home import jobs_dir
from rondo.control.jobs.book import JobBook
from rondo.control.jobs.launchers.local import LocalLauncher
from rondo.control.jobs.launchers.members import kill_members
from rondo.jobs.job import Job
from rondo.jobs.spec import JobSpec
from support.disk import resize, small_disk
from support.one_job import STEPS, pretraining


@pytest.mark.timeout(600)
def test_training_on_a_full_disk_fails_an_attempt_and_continues(
    book: JobBook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    train, launcher, disk = pretraining(tmp_path), LocalLauncher(), tmp_path / "disk"
    settings = {
        name.removeprefix("--"): value for name, value in zip(train[2:6:2], train[3:6:2], strict=True)
    }
    settings |= dict(each.removeprefix("--train.").split("=") for each in train[6:])
    with small_disk(disk, "16k"):
        told = settings | {"save_to": str(disk), "save_every": "1"}
        job = book.submit(JobSpec("pretrain", told), "me").result()[0]
        try:
            until(book, launcher, lambda: book.get(job.id).result().failures == 1, CONFIG, 300)
            messages = "\n".join(event.message for event in book.events(job.id).result())
            assert str(disk) in messages
            resize(disk, "64m")
            until(book, launcher, lambda: book.get(job.id).result().final, CONFIG, 300)
        finally:
            for number in range(1, CONFIG.attempts + 1):
                kill_members(job.id, number)
        row = book.get(job.id).result()
        assert state(book, job) == "succeeded", row.error
        assert row.failures < CONFIG.attempts
        assert max(Job(jobs_dir() / str(row.hash)).saved_steps()) == STEPS
