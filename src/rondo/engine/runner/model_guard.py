"""What may happen to a model behind the back of who has looked at it."""

from __future__ import annotations

from rondo.models import Decoder


class Watched:
    """Its weights may move, or become others; and something may come to hang on its modules."""

    def __init__(self, model: Decoder) -> None:
        modules = list(model.modules())
        self._hooks = [
            hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        self._parameters = [(module._parameters, name) for module in modules for name in module._parameters]
        self._places: list[int] = []

    @property
    def hooked(self) -> bool:
        """What hangs on a module (an adapter that is attached, an observer) must see its module called."""
        return any(self._hooks)

    def moved(self) -> bool:
        """Whether weights are elsewhere than when this was last asked; the first time they are."""
        places = [
            0 if (parameter := parameters[name]) is None else parameter.data_ptr()
            for parameters, name in self._parameters
        ]
        moved, self._places = places != self._places, places
        return moved
