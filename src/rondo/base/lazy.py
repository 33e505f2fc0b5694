"""Names that a package exports, but imports only on first use."""

from collections.abc import Callable, Mapping


def lazy(package: str, exports: Mapping[str, str]) -> Callable[[str], object]:
    """The package's `__getattr__`. `exports` maps each name to its module, relative to the package."""

    def get(name: str) -> object:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(exports[name], package), name)

    return get
