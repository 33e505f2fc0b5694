"""Names that a package exports, but imports only when they are first asked for."""

from collections.abc import Callable, Mapping


def lazy(package: str, exports: Mapping[str, str]) -> Callable[[str], object]:
    """The package's `__getattr__`. `exports` says in which module each name is, seen from the package."""

    def get(name: str) -> object:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(exports[name], package), name)

    return get
