"""Tasks out of JSON Lines files."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from rondo.base.errors import ConfigError, InvalidRequest, NotFound
from rondo.graders import Sample, Score
from rondo.rl.tasks.files import FileTask, read_task
from rondo.rl.tasks.registry import find, fingerprint
from rondo.rl.tasks.types import Problem, split_of

MATCH = {"type": "match", "extract": "last_number", "compare": "numeric"}


def write(folder: Path, *records: Any, name: str = "sums.jsonl") -> str:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder / name)


def sums(n: int = 100, **more: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"{i} + 1 =", "answer": i + 1, **more} for i in range(n)]


def score(goal: FileTask, problem: Problem, answer: str) -> Score:
    sample = Sample(problem.question, answer, metadata={**problem.facts, "finished": True})
    return asyncio.run(goal.score(sample))


def test_a_file_is_a_task(tmp_path: Path) -> None:
    goal = read_task(write(tmp_path, *sums()), MATCH)
    assert goal.name == "sums"
    assert goal.max_tokens > 0
    problem = goal.prompts(0, 1)[0]
    assert problem.messages == [{"role": "user", "content": problem.question}]
    right = str(problem.facts["item"]["answer"])
    assert score(goal, problem, f"it is {right}.").total == 1
    assert score(goal, problem, "it is -1").total == 0


def test_prompts_are_a_function_of_the_seed_and_held_out_ones_are_never_trained_on(tmp_path: Path) -> None:
    goal = read_task(write(tmp_path, *sums()), MATCH)
    assert goal.prompts(3, 20) == goal.prompts(3, 20)
    assert goal.prompts(3, 20) != goal.prompts(4, 20)
    assert len({p.question for p in goal.prompts(0, 20)}) == 20
    held_out = goal.prompts(0, 1000, "held_out")
    train = goal.prompts(0, 1000)
    assert len(held_out) == len({p.question for p in held_out})
    assert len(train) == 1000
    assert {split_of(p.question) for p in held_out} == {"held_out"}
    assert len({p.question for p in train}) + len(held_out) == 100
    shuffled = read_task(write(tmp_path, *reversed(sums()), *sums(200)[100:]), MATCH)
    assert {p.question for p in held_out} <= {p.question for p in shuffled.prompts(0, 1000, "held_out")}


def test_messages_and_several_answers(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital of Peru?"}]
    file = write(
        tmp_path,
        {"messages": talk, "reference_answer": ["Lima", "Lima, Peru"], "split": "train"},
        {"messages": talk[1:], "answer": "Lima", "split": "held_out"},
    )
    goal = read_task(file, {"type": "match"})
    (problem,) = goal.prompts(0, 1)
    assert problem.messages == talk
    assert score(goal, problem, "lima, peru.").total == 1
    (alone,) = goal.prompts(0, 5, "held_out")
    assert alone.question == "Capital of Peru?"


def test_records_with_graders_of_their_own(tmp_path: Path) -> None:
    check = {
        "type": "string_check",
        "input": "{{ sample.output_text }}",
        "reference": "{{ item.city }}",
        "operation": "eq",
    }
    records = [*sums(40), *({"prompt": f"city {i}", "city": f"L{i}", "grader": check} for i in range(40))]
    goal = read_task(write(tmp_path, *records), MATCH)
    assert len(goal.own_graders) == 1
    for problem in goal.prompts(0, 60):
        item = problem.facts["item"]
        assert score(goal, problem, str(item.get("city", item.get("answer")))).total == 1
        assert score(goal, problem, "0").total == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "a JSON object"),
        ("{}", '"prompt" or "messages"'),
        ({"prompt": "x", "messages": []}, "one of them"),
        ({"prompt": ""}, "must be text"),
        ({"prompt": 3}, "must be text"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\]"),
        ({"messages": [{"role": "user", "content": None}]}, "must be text"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
            "assistant",
        ),
        ({"prompt": "x", "answer": {"a": 1}}, "an answer must be"),
        ({"prompt": "x", "answer": True}, "an answer must be"),
        ({"prompt": "x", "split": "test"}, "train or held_out"),
        ({"prompt": "x", "grader": {"type": "mach"}}, "Did you mean match"),
        ({"prompt": "0 + 1 =", "split": "held_out"}, "already"),
        ("\udcff", "not JSON"),
    ],
)
def test_a_broken_line_is_located(
    tmp_path: Path, line: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "sums.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    lines = [json.dumps({**record, "split": "train"}) for record in sums(3)]
    lines += [text, json.dumps({"prompt": "9 + 1 =", "answer": 10, "split": "held_out"})]
    file.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidRequest, match=rf"sums.jsonl, line 4: .*{said}"):
        read_task(str(file), MATCH)
    with caplog.at_level(logging.WARNING):
        goal = read_task(str(file), MATCH, max_broken=1)
    assert "1 broken records left out" in caplog.text
    assert len({p.question for p in goal.prompts(0, 3)}) == 3


def test_a_record_that_nothing_grades(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r'line 1: no "grader" in this record'):
        read_task(write(tmp_path, *sums()), {})


def test_a_split_without_prompts(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="in the split held_out"):
        read_task(write(tmp_path, *sums(3, split="train")), MATCH)


def test_one_name_finds_every_kind_of_task(tmp_path: Path) -> None:
    file = write(tmp_path, *sums())
    assert find(file, MATCH).name == "sums"
    assert find("reverse").name == "reverse"
    with pytest.raises(ConfigError, match="no file"):
        find("nowhere.jsonl", MATCH)
    with pytest.raises(ConfigError, match="a grader is for a file"):
        find("reverse", MATCH)
    with pytest.raises(NotFound, match=r"reverse, add.*\.jsonl.*module:attribute"):
        find("revers")
    with pytest.raises(ConfigError, match=r"rl\.grader has no type 'mach'"):
        find(file, {"type": "mach"})


def test_the_fingerprint_is_of_the_records_and_the_grader(tmp_path: Path) -> None:
    first = read_task(write(tmp_path, *sums()), MATCH)
    assert fingerprint(read_task(write(tmp_path, *sums(), name="other.jsonl"), MATCH)) == fingerprint(first)
    assert fingerprint(read_task(write(tmp_path, *sums(101)), MATCH)) != fingerprint(first)
    assert fingerprint(read_task(write(tmp_path, *sums()), {"type": "match"})) != fingerprint(first)
    assert fingerprint(find("reverse")) is None


STRINGS = {
    "type": "string_check",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.city }}",
    "operation": "eq",
}
SIMILARITY = {
    "type": "text_similarity",
    "input": "x",
    "reference": "{{ item.city }}",
    "evaluation_metric": "bleu",
}
JUDGE = {"type": "score_model", "model": "judge", "input": [{"role": "user", "content": "{{ item.rubric }}"}]}


@pytest.mark.parametrize(
    ("grader", "record", "said"),
    [
        (
            {"type": "math"},
            {"solution": "4"},
            'no "answer" in this record, with which the math grader compares',
        ),
        ({"type": "math", "timeout_s": 5}, {}, "with which the math grader compares; its fields are prompt"),
        ({"type": "math"}, {"answer": " "}, "the math grader cannot judge .* reference answer is empty"),
        (MATCH, {"answer": "four"}, "the match grader cannot judge answers to this record: .* not a number"),
        ({"type": "choice"}, {"answer": "E"}, "none of the letters ABCD"),
        (STRINGS, {"answer": "Lima"}, r"the item has no item\.city"),
        (SIMILARITY, {}, r"the item has no item\.city"),
        (JUDGE, {"answer": "x"}, r"the item has no item\.rubric"),
        ({"type": "code"}, {"answer": "x"}, "one of cases, calls, tests; this one has none"),
        (
            {"type": "weighted", "graders": {"a": {"type": "format", "tags": ["b"]}, "b": STRINGS}},
            {"answer": "x"},
            r"the item has no item\.city",
        ),
        (
            {"type": "multi", "graders": {"b": STRINGS}, "calculate_output": "b"},
            {"answer": "x"},
            r"the item has no item\.city",
        ),
    ],
)
def test_a_record_without_what_its_grader_needs_is_rejected(
    tmp_path: Path, grader: dict[str, Any], record: dict[str, Any], said: str
) -> None:
    """The file is read before the model: such a record would never be judged."""
    with pytest.raises(InvalidRequest, match=f"line 1: .*{said}"):
        read_task(write(tmp_path, {"prompt": "x", **record}), grader)
