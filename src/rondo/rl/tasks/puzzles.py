"""Problems of the built-in tasks: generation, reference solutions and grading by parts."""

from __future__ import annotations

import ast
import itertools
import operator
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Facts = dict[str, Any]
Parts = dict[str, float]


def make_reverse(source: random.Random) -> tuple[str, Facts]:
    word = "".join(source.choices(string.ascii_uppercase, k=source.randint(3, 6)))
    return f"reverse {word}", {"word": word}


def solve_reverse(facts: Facts) -> str:
    return str(facts["word"])[::-1]


def grade_reverse(facts: Facts, answer: str) -> Parts:
    return _in_places(solve_reverse(facts), answer, bool(re.fullmatch("[A-Z]+", answer)))


def make_add(source: random.Random) -> tuple[str, Facts]:
    a, b = source.randint(0, 99), source.randint(0, 99)
    return f"add {a} and {b}", {"a": a, "b": b}


def solve_add(facts: Facts) -> str:
    """The working first: ones, then tens with the carry, one line each."""
    a, b = facts["a"], facts["b"]
    ones = a % 10 + b % 10
    carried = "+1" if ones > 9 else ""
    tens = a // 10 + b // 10 + ones // 10
    return f"{a % 10}+{b % 10}={ones}\n{a // 10}+{b // 10}{carried}={tens}\n{a + b}"


def grade_add(facts: Facts, answer: str) -> Parts:
    """Grade the last line; earlier lines are working. Digits are compared from the right, by place value."""
    result = _last_line(answer)
    return _in_places(str(facts["a"] + facts["b"])[::-1], result[::-1], bool(re.fullmatch("[0-9]+", result)))


def same_add(facts: Facts) -> str:
    return str(sorted((facts["a"], facts["b"])))


def make_sort(source: random.Random) -> tuple[str, Facts]:
    numbers = source.choices(range(10), k=source.randint(3, 6))
    return f"sort {' '.join(map(str, numbers))}", {"numbers": numbers}


def solve_sort(facts: Facts) -> str:
    return " ".join(map(str, sorted(facts["numbers"])))


def grade_sort(facts: Facts, answer: str) -> Parts:
    well_formed = bool(re.fullmatch(r"[0-9]( [0-9])*", answer))
    return _in_places(sorted(map(str, facts["numbers"])), answer.split(), well_formed)


def same_sort(facts: Facts) -> str:
    return str(sorted(facts["numbers"]))


def _last_line(answer: str) -> str:
    return answer.rpartition("\n")[2]


def _in_places(expected: Sequence[str], given: Sequence[str], well_formed: bool) -> Parts:
    right = sum(a == b for a, b in zip(expected, given, strict=False))
    return {
        "format": float(well_formed),
        "length": max(0.0, 1 - abs(len(expected) - len(given)) / len(expected)),
        "places": right / max(len(expected), len(given)),
        "correct": float(well_formed and right == len(expected) == len(given)),
    }


_OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_NODES = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


def make_countdown(source: random.Random) -> tuple[str, Facts]:
    numbers = [source.randint(1, 9) for _ in range(3)]
    reachable = sorted({value for _, value in _expressions(numbers) if 0 < value < 100})
    target = source.choice(reachable)
    return f"countdown {' '.join(map(str, numbers))} to {target}", {"numbers": numbers, "target": target}


def solve_countdown(facts: Facts) -> str:
    return next(text for text, value in _expressions(facts["numbers"]) if value == facts["target"])


def grade_countdown(facts: Facts, answer: str) -> Parts:
    value, used = evaluate(answer)
    given: Counter[int] = Counter(facts["numbers"])
    overlap = sum((given & Counter(used)).values())
    exact = value == facts["target"] and Counter(used) == given
    near = 0.0 if value is None else 1 / (1 + abs(value - facts["target"]))
    return {
        "format": float(value is not None),
        "numbers": overlap / max(len(used), len(facts["numbers"])),
        "near": near,
        "correct": float(exact),
    }


def same_countdown(facts: Facts) -> str:
    return f"{sorted(facts['numbers'])} {facts['target']}"


def _expressions(numbers: Sequence[int]) -> Iterator[tuple[str, int]]:
    """All expressions (a . b) . c in every order and with every operation."""
    for a, b, c in itertools.permutations(numbers):
        for first, second in itertools.product(_OPERATIONS, repeat=2):
            value = _OPERATIONS[second](_OPERATIONS[first](a, b), c)
            yield f"({a}{first}{b}){second}{c}", value


def evaluate(text: str) -> tuple[int | None, list[int]]:
    """The value of an integer expression and the numbers in it, or None. Only + - * and brackets are evaluated."""
    if len(text) > 64 or not re.fullmatch(r"[0-9+\-*() ]+", text):
        return None, []
    try:
        return _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return None, []


def _value(node: ast.expr) -> tuple[int, list[int]]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value, [node.value]
    if isinstance(node, ast.BinOp) and type(node.op) in _NODES:
        (left, used), (right, more) = _value(node.left), _value(node.right)
        return _OPERATIONS[_NODES[type(node.op)]](left, right), used + more
    raise ValueError("not a sum of whole numbers")
