"""Errors of models that have no room in the memory budget, with the figures."""

from __future__ import annotations

from collections.abc import Mapping

from rondo.base.errors import InvalidRequest, Unavailable
from rondo.base.units import human_bytes
from rondo.supervisor.catalog import Loadable, MemoryNeed


def check_fits(model: Loadable, need: MemoryNeed, budget: int, pinned: int) -> None:
    """Refuses a model that does not fit even if every engine on demand ends."""
    room = max(0, budget - pinned)
    if need.total <= room:
        return
    raise InvalidRequest(
        f"The model {model.name!r} does not fit: its engine needs about {human_bytes(need.total)} (weights "
        f"{human_bytes(need.weights)}, KV cache {human_bytes(need.cache)}, process {human_bytes(need.overhead)}), and "
        f"{human_bytes(room)} of the budget of {human_bytes(budget)} are left beside the pinned engines. Raise "
        "up.memory, or lower engine.max_model_len or engine.kv_cache_bytes.",
        param="model",
        code="model_too_large",
    )


def no_room(
    model: Loadable, need: MemoryNeed, budget: int, pinned: int, held: Mapping[str, int]
) -> Unavailable:
    """`held` are the bytes of the engines on demand, by model."""
    shown = ", ".join(f"{name} {human_bytes(size)}" for name, size in held.items())
    return Unavailable(
        f"No room for the model {model.name!r}, which needs about {human_bytes(need.total)}: the budget is "
        f"{human_bytes(budget)}, pinned engines have {human_bytes(pinned)}, and these models are in use: {shown}. Try "
        "again later.",
        code="no_memory_for_model",
    )


def still_loading(model: Loadable, state: str) -> Unavailable:
    return Unavailable(
        f"The model {model.name!r} is {state}: try again in a few seconds.", code="model_loading"
    )
