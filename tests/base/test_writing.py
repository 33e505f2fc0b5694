"""The writing rules' check (tools/writing.py)."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def writing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("writing", ROOT / "tools" / "writing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "clause",
    [
        "who asks for it waits until it is",
        "whatever a policy wrote last",
        "nobody reads the last row",
        "the server tells the client its version",
        "the cache keeps all of its blocks",
        "those that were evicted come back",
    ],
)
def test_private_vocabulary_is_a_violation(writing: ModuleType, clause: str) -> None:
    [(line, found)] = writing.clauses(clause)
    assert (line, found) == (1, clause)
    assert writing.BANNED.search(found)


@pytest.mark.parametrize(
    "text",
    [
        "Grammars are compiled once and cached.",
        "An error contains what to type next.",
        "What is the capital of Peru?",
        "`rondo` caches `what nobody says` for each request",
        'The message is "who asks for it" in this case.',
    ],
)
def test_plain_english_code_and_quotations_are_not(writing: ModuleType, text: str) -> None:
    assert list(writing.clauses(text))
    assert not [clause for _, clause in writing.clauses(text) if writing.BANNED.search(clause)]


def test_lines_are_counted_over_code(writing: ModuleType) -> None:
    text = "A heading of a page.\n\n```sh\nnobody knows who\n```\n\nIt is cached, and nobody waits for it.\n"
    assert [line for line, clause in writing.clauses(text) if writing.BANNED.search(clause)] == [7]


def test_docstrings_errors_and_help_are_areas(writing: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        '"""A docstring of the module."""\n'
        'raise ConfigError(f"the field {x} is missing here")\n'
        'Field(1, description="number of workers per host")\n'
        'print("not one of the areas")\n'
    )
    assert list(writing.strings(file)) == [
        ("docstrings", 1, "A docstring of the module."),
        ("errors", 2, "the field x is missing here"),
        ("help", 3, "number of workers per host"),
    ]
