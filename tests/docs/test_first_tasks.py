"""The first tasks of docs/rl.md and of the examples reward solutions only: no answer without one earns anything."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from rondo.base.settings.config import load
from rondo.cli.options.tree import RondoConfig
from rondo.graders import Sample, Score
from rondo.graders.registry import grader_of
from rondo.rl.tasks.custom import load_task
from support.documents import ROOT, blocks

WORTHLESS = [
    "",
    " ",
    "7",
    "-1",
    "0.5",
    "number",
    "<answer></answer>",
    "<answer>-7</answer>",
    "double",
    "1 2 3 4 5 7",
]
"""Empty, constant and format-only answers."""


@pytest.fixture
def first_task(tmp_path: Path):
    """The task of the first code block of docs/rl.md."""
    block = next(block for block in blocks(ROOT / "docs" / "rl.md") if block.kind == "python")
    assert block.options == {"file": "double.py"}
    (tmp_path / "double.py").write_text(block.code)
    return load_task(f"{tmp_path / 'double.py'}:DOUBLE")


def scored(task, problem, answer: str) -> Score:
    sample = Sample(problem.question, answer, metadata=dict(problem.facts))
    score: Score = asyncio.run(task.score(sample))
    assert score.outcome == "ok"
    return score


def test_the_manual_begins_with_a_task_of_the_user() -> None:
    text = (ROOT / "docs" / "rl.md").read_text()
    assert re.findall(r"^## (.*)$", text, re.M)[0] == "Your task, your file, your agent"


def test_only_a_solution_earns_a_reward(first_task) -> None:
    for problem in first_task.prompts(0, 20):
        number = problem.facts["n"]
        assert scored(first_task, problem, f" {2 * number}\n").total == 1
        for answer in [*WORTHLESS, str(number), f"double {number}", f"{2 * number} {number}"]:
            right = answer == str(2 * number)
            assert scored(first_task, problem, answer).total == right, answer


def test_the_form_is_logged(first_task) -> None:
    [problem] = first_task.prompts(0, 1)
    assert scored(first_task, problem, "7").parts == {"correct": 0, "number": 1}


def test_the_example_is_the_task_of_the_manual() -> None:
    code = next(block.code for block in blocks(ROOT / "docs" / "rl.md") if block.kind == "python")
    for file in ("examples/own_task.py", "docs/graders.md"):
        assert code.strip() in (ROOT / file).read_text(), file


def test_questions_reward_the_right_number_only() -> None:
    grader = grader_of(load(RondoConfig, ROOT / "examples" / "questions.toml").tree.rl.grader)
    records = [json.loads(line) for line in (ROOT / "examples" / "questions.jsonl").read_text().splitlines()]
    for record in records[:5]:
        right = f"<answer>{record['answer']}</answer>"
        for answer in [right, *WORTHLESS]:
            score = asyncio.run(grader.score(Sample(record["prompt"], answer, str(record["answer"]))))
            assert score.total == (answer == right), answer
