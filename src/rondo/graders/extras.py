"""Libraries that only some graders need."""

from importlib.util import find_spec

from rondo.base.errors import MissingExtra


def needs(module: str, package: str | None = None) -> None:
    """Says so when the grader is made, and not once an answer, where `module` is not installed."""
    if find_spec(module) is None:
        raise MissingExtra(package or module, "graders")
