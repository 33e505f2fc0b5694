"""The dispatcher: who is asked, in which order, and how to have the references alone."""

import importlib.util
from pathlib import Path

import pytest

from rondo.ops import dispatch
from rondo.ops.dispatch import Op, use_reference


def doubler() -> Op[[int], str]:
    @Op
    def double(x: int) -> str:
        """Twice x."""
        return f"reference {2 * x}"

    @double.fast(lambda x: x > 100)
    def _large(x: int) -> str:
        return f"large {2 * x}"

    @double.fast(lambda x: x > 10)
    def _medium(x: int) -> str:
        return f"medium {2 * x}"

    return double


def test_first_version_that_supports_the_arguments_runs() -> None:
    double = doubler()
    assert [double(x) for x in (1, 11, 101)] == ["reference 2", "medium 22", "large 202"]


def test_keywords_reach_both_questions_and_versions() -> None:
    assert doubler()(x=11) == "medium 22"


def test_it_looks_like_the_reference() -> None:
    double = doubler()
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice x."
    assert double.reference(101) == "reference 202"


def test_references_alone() -> None:
    double = doubler()
    with use_reference():
        assert double(101) == "reference 202"
        with use_reference():
            pass
        assert double(101) == "reference 202", "an inner block does not end the outer one"
    assert double(101) == "large 202"


def test_an_error_ends_the_block() -> None:
    double = doubler()
    with pytest.raises(RuntimeError), use_reference():
        raise RuntimeError
    assert double(101) == "large 202"


def test_an_error_in_a_fast_version_is_not_hidden() -> None:
    @Op
    def op() -> int:
        return 1

    @op.fast(lambda: True)
    def _broken() -> int:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        op()


@pytest.mark.parametrize(("setting", "alone"), [("reference", True), ("", False), ("fast", False)])
def test_environment(setting: str, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_OPS", setting)
    spec = importlib.util.spec_from_file_location("fresh_dispatch", Path(dispatch.__file__))
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    op = fresh.Op(lambda: "reference")
    op.fast(lambda: True)(lambda: "fast")
    assert op() == ("reference" if alone else "fast")
