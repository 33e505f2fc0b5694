import asyncio
import random

import pytest

from rondo.base.errors import NotFound
from rondo.graders import Sample
from rondo.rl.tasks import puzzles
from rondo.rl.tasks.registry import TASKS, Task, task

tasks = pytest.mark.parametrize("goal", TASKS.values(), ids=list(TASKS))


@tasks
def test_the_reference_solution_earns_everything(goal: Task) -> None:
    for problem in goal.prompts(0, 50):
        answer = goal.solve(problem.facts)
        assert goal.grade(problem.facts, answer) == dict.fromkeys(goal.shares, 1.0)
        score = asyncio.run(goal.score(Sample(problem.question, answer, metadata=problem.facts)))
        assert score.outcome == "ok"
        assert score.total == pytest.approx(1.0)


@tasks
def test_rubbish_earns_little_and_stays_in_range(goal: Task) -> None:
    source = random.Random(0)
    for problem in goal.prompts(0, 50):
        for answer in (
            "",
            " ",
            "((((",
            "9**9**9",
            "hello there",
            "A" * 500,
            "".join(source.choices("ABC 123+*()", k=8)),
        ):
            parts = goal.grade(problem.facts, answer)
            assert parts.keys() == goal.shares.keys()
            assert all(0 <= part <= 1 for part in parts.values())
            assert goal.total(parts) < 1 or answer == goal.solve(problem.facts)


@tasks
def test_prompts_are_a_function_of_the_seed_and_held_out_ones_are_never_trained_on(goal: Task) -> None:
    assert goal.prompts(3, 20) == goal.prompts(3, 20)
    assert goal.prompts(3, 20) != goal.prompts(4, 20)
    held_out = {p.question for p in goal.prompts(0, 100, "held_out")}
    assert held_out.isdisjoint(p.question for seed in range(5) for p in goal.prompts(seed, 100))
    assert goal.shares.values()
    assert sum(goal.shares.values()) == pytest.approx(1.0)


@tasks
def test_the_same_numbers_in_another_order_are_held_out_together(goal: Task) -> None:
    source = random.Random(0)
    for problem in goal.prompts(0, 50, "held_out"):
        facts = dict(problem.facts)
        if "numbers" in facts:
            facts["numbers"] = source.sample(facts["numbers"], len(facts["numbers"]))
        elif "a" in facts:
            facts = {"a": facts["b"], "b": facts["a"]}
        assert goal.split(problem.question, facts) == "held_out"


def test_of_add_the_last_line_is_graded() -> None:
    facts = {"a": 47, "b": 38}
    assert puzzles.solve_add(facts) == "7+8=15\n4+3+1=8\n85"
    assert puzzles.grade_add(facts, "85")["correct"] == 1.0
    assert puzzles.grade_add(facts, "85\n")["correct"] == puzzles.grade_add(facts, "85\n9")["correct"] == 0.0


def test_partial_credit() -> None:
    parts = puzzles.grade_reverse({"word": "ABCD"}, "DCBX")
    assert parts == {"format": 1.0, "length": 1.0, "places": 0.75, "correct": 0.0}
    assert puzzles.grade_reverse({"word": "ABCD"}, "DCBA ")["correct"] == 0.0
    assert puzzles.grade_add({"a": 58, "b": 64}, "22")["places"] == pytest.approx(2 / 3)
    assert puzzles.grade_sort({"numbers": [3, 1, 2]}, "1 2 2")["places"] == pytest.approx(2 / 3)
    near = puzzles.grade_countdown({"numbers": [3, 7, 2], "target": 20}, "(3+7)*2")
    far = puzzles.grade_countdown({"numbers": [3, 7, 2], "target": 20}, "(3+7)*3")
    assert near["correct"] == 1.0
    assert far["correct"] == 0.0
    assert far["numbers"] == pytest.approx(2 / 3)


def test_an_answer_that_was_cut_off_is_not_correct() -> None:
    goal = task("reverse")
    sample = Sample("reverse ABC", "CBA", metadata={"word": "ABC", "finished": False})
    score = asyncio.run(goal.score(sample))
    assert score.parts["correct"] == score.parts["format"] == 0.0


def test_an_unknown_task_lists_the_known_ones() -> None:
    with pytest.raises(NotFound, match="reverse, add, sort, countdown"):
        task("revers")
