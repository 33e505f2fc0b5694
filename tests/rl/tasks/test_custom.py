"""Tasks of a user's own."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from rondo.base.errors import ConfigError, InvalidRequest, NotFound
from rondo.graders import Sample, Score
from rondo.rl.tasks.custom import Custom, load_task
from rondo.rl.tasks.registry import find, fingerprint
from rondo.rl.tasks.types import AnyTask

FILE = """
import os, time
from rondo.rl.tasks.custom import Custom
from rondo.rl.tasks.registry import TASKS

def make(random):
    n = random.randrange(1000)
    return f"double {n}", {"n": n}

def grade(facts, answer):
    return {"form": answer.isdecimal(), "correct": answer == str(2 * facts["n"])}

def hang(facts, answer):
    time.sleep(600)

def needs_a_key(facts, answer):
    return 1.0 if os.environ.get("SEARCH_KEY") == "secret" else 0.0

async def slowly(facts, answer):
    return 0.5

def talk(random):
    n = random.randrange(1000)
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"double {n}"}], {"n": n}

DOUBLE = Custom(make, grade, max_tokens=6)
POOLED = Custom(make, f"{__file__}:grade")
WITHOUT_KEY = Custom(make, f"{__file__}:needs_a_key")
WITH_KEY = Custom(make, f"{__file__}:needs_a_key", pass_env=["SEARCH_KEY"])
HANGS = Custom(make, f"{__file__}:hang")
AWAITED = Custom(make, slowly, name="named")
TALK = Custom(talk, grade)
SAME = Custom(lambda random: ("same", {}), grade)
WRONG = Custom(lambda random: "same", grade)
NAN = Custom(make, lambda facts, answer: float("nan"))
TEXT = Custom(make, lambda facts, answer: "good")
BUILT_IN = TASKS["add"]
def made(): return DOUBLE
def fails(): raise ValueError("no luck")
NOTHING = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(FILE)
    return str(tmp_path / "mine.py")


def score(goal: AnyTask, answer: str) -> tuple[Score, int]:
    problem = goal.prompts(0, 1)[0]
    sample = Sample(problem.question, answer, metadata={**problem.facts, "finished": True})
    return asyncio.run(goal.score(sample)), problem.facts["n"]


def test_a_task_in_ten_lines(file: str) -> None:
    goal = find(f"{file}:DOUBLE")
    assert (goal.name, goal.max_tokens) == ("double", 6)
    assert goal.prompts(1, 10) == goal.prompts(1, 10) != goal.prompts(2, 10)
    held_out = {p.question for p in goal.prompts(0, 100, "held_out")}
    assert held_out.isdisjoint(p.question for seed in range(5) for p in goal.prompts(seed, 100))
    _, n = score(goal, "")
    assert score(goal, str(2 * n))[0] == Score("ok", 1.0, {"form": 1.0, "correct": 1.0})
    assert score(goal, "7777777")[0].parts == {"form": 1.0, "correct": 0.0}


def test_the_grade_may_be_a_coroutine_or_in_a_process_of_its_own(file: str) -> None:
    assert score(load_task(f"{file}:AWAITED"), "")[0].total == 0.5
    assert load_task(f"{file}:AWAITED").name == "named"
    assert score(load_task(f"{file}:POOLED"), "7777777")[0].parts == {"form": 1.0, "correct": 0.0}


def test_a_named_grade_gets_only_the_variables_that_are_listed(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "secret")
    assert score(load_task(f"{file}:WITHOUT_KEY"), "")[0].total == 0.0
    assert score(load_task(f"{file}:WITH_KEY"), "")[0].total == 1.0


def test_a_grade_that_hangs_is_a_timeout(file: str) -> None:
    goal = load_task(f"{file}:HANGS")
    assert isinstance(goal, Custom)
    assert score(replace(goal, seconds=0.3), "")[0].outcome == "timeout"


def test_other_tasks_and_what_makes_them(file: str) -> None:
    assert load_task(f"{file}:BUILT_IN").name == "add"
    assert load_task(f"{file}:made").name == "made"


def test_messages(file: str) -> None:
    problem = load_task(f"{file}:TALK").prompts(0, 1)[0]
    assert problem.messages[0] == {"role": "system", "content": "Be brief."}
    assert problem.question.startswith("system: Be brief.\nuser: double")


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("DOUBL", NotFound, "Did you mean DOUBLE"),
        ("NOTHING", ConfigError, "lacks name, max_tokens, prompts, score"),
        ("fails", ConfigError, "ValueError: no luck"),
    ],
)
def test_what_is_no_task(file: str, name: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        find(f"{file}:{name}")


def test_questions_that_are_none(file: str) -> None:
    with pytest.raises(InvalidRequest, match="make more different ones"):
        [load_task(f"{file}:SAME").prompts(0, 1, split) for split in ("train", "held_out")]  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="a question and a dict"):
        load_task(f"{file}:WRONG").prompts(0, 1)


def test_grades_that_are_none(file: str) -> None:
    with pytest.raises(ValueError, match="finite"):
        score(load_task(f"{file}:NAN"), "")
    with pytest.raises(ConfigError, match="must be a number"):
        score(load_task(f"{file}:TEXT"), "")


def test_the_fingerprint_is_of_the_source(file: str, tmp_path: Path) -> None:
    first = fingerprint(load_task(f"{file}:DOUBLE"))
    other = tmp_path / "other.py"
    other.write_text(FILE + "\n# more\n")
    assert first
    assert fingerprint(load_task(f"{other}:DOUBLE")) not in (None, first)
