"""Device sharing: models of a job that do not fit on the device together are offloaded and reloaded in turn.

The policy's weights stay on the device, because both engine and learner compute with them. All other models and
states are roles with a size in bytes, a load function and an offload function. A role is offloaded only if the budget
requires it; the role with the most distant next use is offloaded first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.base.errors import ConfigError
from rondo.engine.entrypoints.llm import LLM
from rondo.models import Decoder
from rondo.train.learner.learner import Learner

PHASES: dict[str, tuple[str, ...]] = {
    "rollout": ("engine",),
    "score": ("reward_model",),
    "old": (),
    "reference": ("reference",),
    "teacher": ("teacher",),
    "values": ("critic",),
    "train": ("optimizer", "critic"),
    "push": (),
}
"""Phases of a step in order, each with the roles that it requires besides the policy."""
HOST = "host"
PARAM = "rl.device_bytes"


@dataclass
class Role:
    name: str
    nbytes: int
    """Device memory of the loaded role in bytes."""
    onload: Callable[[], None]
    offload: Callable[[], None]
    loaded: bool = True


class Roles:
    def __init__(self, roles: Sequence[Role], budget: int = 0) -> None:
        """`budget` is the limit of all roles together, in bytes; 0 disables offloading. A phase whose roles exceed
        the budget raises a ConfigError before the first step.
        """
        self._roles = {role.name: role for role in roles}
        self._budget = budget
        for phase in PHASES if budget else ():
            own = self._of(phase)
            if (needed := sum(role.nbytes for role in own)) > budget:
                names = " and ".join(role.name for role in own)
                raise ConfigError(
                    f"{PARAM}={budget}: {names} take {needed} bytes together in the phase {phase}. Raise it, or give "
                    f"{names} less: smaller models, fewer tokens in the KV cache",
                    param=PARAM,
                )

    def phase(self, name: str) -> None:
        """Load the roles of the phase, and offload other roles as far as the budget requires."""
        if not self._budget:
            return
        wanted = self._of(name)
        idle = [role for role in self._roles.values() if role.loaded and role not in wanted]
        room = self._budget - sum(role.nbytes for role in [*wanted, *idle])
        for role in sorted(idle, key=lambda role: -self._until(role.name, name)):
            if room >= 0:
                break
            role.offload()
            role.loaded = False
            room += role.nbytes
        for role in wanted:
            if not role.loaded:
                role.onload()
                role.loaded = True

    def _of(self, phase: str) -> list[Role]:
        return [self._roles[name] for name in PHASES[phase] if name in self._roles]

    def _until(self, role: str, phase: str) -> int:
        """Number of phases until the role is required."""
        names = list(PHASES)
        at = names.index(phase)
        order = [*names[at + 1 :], *names[: at + 1]]
        return next((i for i, each in enumerate(order) if role in PHASES[each]), len(order))


def parked(name: str, *models: Decoder) -> Role:
    """Role of a model that is not trained, including a copy in a narrower type if there is one. The host copy stays
    allocated, so that only the first offload copies.
    """
    parameters = list({id(p): p for model in models for p in model.parameters()}.values())
    device = models[0].device
    host: list[Tensor] = []

    def offload() -> None:
        if not host:
            host.extend(_in_host_memory(p.detach()) for p in parameters)
        for parameter, x in zip(parameters, host, strict=True):
            parameter.data = x
        _empty_cache(device)

    def onload() -> None:
        for parameter, x in zip(parameters, host, strict=True):
            parameter.data = x.to(device, copy=True)

    return Role(name, sum(p.nbytes for p in parameters), onload, offload)


def critic_role(learner: Learner) -> Role:
    """Role of a separate critic: weights and optimizer state."""
    return Role(
        "critic",
        bytes_of(learner.model) + moments_of(learner),
        learner.onload,
        lambda: learner.offload(HOST),
    )


def optimizer_role(policy: Learner) -> Role:
    return Role("optimizer", moments_of(policy), policy.onload, lambda: policy.offload(HOST, weights=False))


def engine_role(engine: LLM) -> Role:
    """Role of the KV cache. The weights are the learner's and are restored right after the engine's sleep."""

    def offload() -> None:
        engine.sleep(1)
        engine.wake_up(["weights"])

    cache = sum(tensor.nbytes for tensor in engine.core.sleeper.cache.tensors)
    return Role("engine", cache, lambda: engine.wake_up(["kv_cache"]), offload)


def bytes_of(model: Decoder) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def moments_of(learner: Learner) -> int:
    """Bytes of the optimizer state, also before its first step: two numbers per trained parameter."""
    return 2 * sum(p.nbytes for p in learner.trained.parameters() if p.requires_grad)


def _in_host_memory(x: Tensor) -> Tensor:
    return torch.empty_like(x, device="cpu", pin_memory=x.is_cuda).copy_(x)


def _empty_cache(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
