"""Rows of jobs: submission, owners, states."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from control.jobs.running import spec, submit
from rondo.base.errors import NotFound
from rondo.control.jobs.book import JobBook, JobRow
from rondo.control.jobs.states import FINAL, NEXT


def test_equal_submissions_are_one_job_however_many_arrive_at_once(book: JobBook) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: book.submit(spec("long"), "me").result(), range(40)))
    assert len({row.id for row, _ in made}) == 1
    assert sum(new for _, new in made) == 1
    other, new = book.submit(spec("long"), "another").result()
    assert new
    assert other.id != made[0][0].id
    book.cancel(other.id).result()
    assert book.submit(spec("long"), "another").result()[1], "a cancelled job can be submitted again"


def test_jobs_of_another_owner_do_not_exist(book: JobBook) -> None:
    job = submit(book, "long")
    with pytest.raises(NotFound, match="There is no job"):
        book.get(job.id, "another").result()
    with pytest.raises(NotFound):
        book.cancel(job.id, "another").result()
    assert book.all("another").result() == []
    assert [row.id for row in book.all("me").result()] == [job.id]


def test_a_list_continues_after_a_job(book: JobBook) -> None:
    jobs = [submit(book, "long", str(number)) for number in range(5)]
    first = book.all("me", limit=2).result()
    rest = book.all("me", after=first[-1].id, limit=9).result()
    assert [row.id for row in first + rest] == [job.id for job in reversed(jobs)]


def test_a_final_state_is_never_left() -> None:
    assert all(not NEXT[state] for state in FINAL)
    assert all(NEXT[state] <= set(NEXT) for state in NEXT)


def test_races_of_cancel_and_finish_end_in_one_of_both(book: JobBook) -> None:
    source = random.Random(5)
    for number in range(100):
        job = submit(book, "x", str(number))
        begun = book.move(job, "starting", "starts", attempt=1, launched=True).result()
        assert begun is not None
        calls = [lambda id=job.id: book.cancel(id), lambda row=begun: book.move(row, "succeeded", "done")]
        source.shuffle(calls)
        pending = [call() for call in calls]
        outcomes = [each.exception() or each.result() for each in pending]
        end = book.get(job.id).result()
        assert end.state in ("cancelled", "succeeded")
        won = [each for each in outcomes if isinstance(each, JobRow)]
        assert len(won) == 1, outcomes
        assert won[0].state == end.state


def test_a_hash_names_the_newest_job_of_the_owner(book: JobBook) -> None:
    mine = submit(book, "x")
    tuned = book.submit(spec("x"), "me", prefix="ftjob").result()[0]
    other = submit(book, "x", owner="another")
    for row in (mine, tuned, other):
        book.note(row, hash="ab" * 32).result()
    assert book.get("ab" * 32, "another").result().id == other.id
    assert book.get("ab" * 32, "me").result().id == tuned.id
    assert book.get("ab" * 32, "me", prefix="job").result().id == mine.id
    assert book.cancel("ab" * 32, "me").result().id == tuned.id
