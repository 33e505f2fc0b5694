"""Optional libraries of single graders."""

from importlib.util import find_spec

from rondo.base.errors import MissingExtra


def needs(module: str, package: str | None = None) -> None:
    """Raises when the grader is constructed, instead of once per answer, if `module` is not installed."""
    if find_spec(module) is None:
        raise MissingExtra(package or module, "graders")
