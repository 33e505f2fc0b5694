"""Detection of changes to a model's weights and hooks."""

from __future__ import annotations

from rondo.models import Decoder


class Watched:
    """Watches a model whose weights may move or be replaced, and whose modules may receive hooks."""

    def __init__(self, model: Decoder) -> None:
        modules = list(model.modules())
        self._hooks = [
            hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        self._parameters = [(module._parameters, name) for module in modules for name in module._parameters]
        self._places: list[int] = []

    @property
    def hooked(self) -> bool:
        """Whether a module has hooks (an attached adapter, an observer), which run only if the module is called."""
        return any(self._hooks)

    def moved(self) -> bool:
        """Whether weights have moved since the last call; True at the first call."""
        places = [
            0 if (parameter := parameters[name]) is None else parameter.data_ptr()
            for parameters, name in self._parameters
        ]
        moved, self._places = places != self._places, places
        return moved
