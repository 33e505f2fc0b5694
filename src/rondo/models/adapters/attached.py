"""Attaching an adapter to a model: forward hooks add the outputs of the adapter's modules to the base's.

No module of the base is replaced or renamed, so its parameter names and `to_hf` stay the same with an adapter attached,
and detaching restores the base exactly.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rondo.base.errors import ModelError
from rondo.models.decoder import Decoder
from rondo.ops.kept import beside

CHILD = "adapter"


@dataclass(eq=False)
class AttachedAdapter:
    """An adapter attached to a model: its parts by the path of the module that each adds to."""

    spec: Any
    parts: Mapping[str, nn.Module]
    frozen: list[nn.Parameter]
    hooks: list[RemovableHandle]
    on: bool = True

    def add(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        """Forward hook: the module's output plus the adapter's output."""
        if not self.on:
            return None
        with beside():
            added: Tensor = module.adapter(inputs[0])  # type: ignore[operator]
        return (output + added).to(output.dtype)


def attach(model: Decoder, spec: Any, parts: Mapping[str, nn.Module], *, train: bool) -> AttachedAdapter:
    """Freeze the base and attach each part to the module at its path."""
    if adapter_of(model) is not None:
        raise ModelError("the model has an adapter already; detach or merge it first")
    frozen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    adapter = AttachedAdapter(spec, dict(parts), frozen, [])
    for path, part in parts.items():
        part.requires_grad_(train)
        module = model.get_submodule(path)
        module.add_module(CHILD, part)
        adapter.hooks.append(module.register_forward_hook(adapter.add))
    model.__dict__[CHILD] = adapter
    return adapter


def adapter_of(model: Decoder) -> AttachedAdapter | None:
    return model.__dict__.get(CHILD)


@contextmanager
def switched_off(model: Decoder) -> Iterator[None]:
    """Within the block the adapter is disabled."""
    adapter = attached(model)
    adapter.on = False
    try:
        yield
    finally:
        adapter.on = True


def detach(model: Decoder) -> None:
    """Detach the adapter and unfreeze the base."""
    adapter = attached(model)
    for path in adapter.parts:
        delattr(model.get_submodule(path), CHILD)
    for hook in adapter.hooks:
        hook.remove()
    for parameter in adapter.frozen:
        parameter.requires_grad_(True)
    del model.__dict__[CHILD]


def attached(model: Decoder) -> AttachedAdapter:
    adapter = adapter_of(model)
    if adapter is None:
        raise ModelError("the model has no adapter")
    return adapter


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Parameters for the optimizer: with an adapter attached, the adapter's only."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
