"""Data parallelism: states sharded among the ranks that have the same parameters (FSDP2), gathered where they are used.

The four ZeRO stages are policies of one mechanism. Stage 3 gathers a layer's parameters for each pass and frees them
afterwards. Stage 2 holds them until a step's last backward pass. Stage 1 also holds whole gradients until then. Stage 0
shards nothing: every rank holds all states, and gradients are reduced at the end of a step, as in DDP.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from rondo.models.decoder import Decoder
from rondo.models.files.checkpoint import KEPT_AS_STORED
from rondo.parallel.pipeline.stage import Stage
from rondo.parallel.ranks.mesh import Mesh


def shard(
    stage: Stage,
    mesh: Mesh,
    computing: torch.dtype | None = None,
    in_host: bool = False,
    kept: torch.dtype | None = None,
) -> None:
    """Shards the stage's states in place: each layer is gathered by itself, the remaining parameters with the whole
    stage. Gathered parameters have the type `computing`, if set; gradients are reduced in fp32. With `in_host`, shards
    are offloaded to the memory of the GPU's host, together with gradients and the optimizer's state. Weights are
    converted to the wider type `kept`, if set, layer by layer: a rank never holds all of them in that type.
    """
    keep_whole(stage, mesh.device)
    precision = MixedPrecisionPolicy(param_dtype=computing, reduce_dtype=torch.float32)
    policy = partial(
        fully_shard,
        mp_policy=precision,
        offload_policy=CPUOffloadPolicy() if in_host else OffloadPolicy(),
        ignored_params=_kept_as_stored(stage) if computing else None,
    )
    # In a pipeline many micro-batches are in flight: parameters stay gathered until the end of the step.
    again = mesh.degrees.config.zero == 3 and mesh.degrees.pp == 1

    def divide(module: nn.Module, over: DeviceMesh, *, again: bool = again) -> None:
        if kept is not None:
            widen(module, kept)
        policy(module, mesh=over, reshard_after_forward=again)

    for experts in _experts(stage.decoder) if mesh.experts else ():
        divide(experts, mesh.expert_sharding)
    for layer in stage.decoder.own_layers():
        divide(layer, mesh.sharding)
    divide(stage, mesh.sharding, again=False)
    for module in _divided(stage):
        # Losses are divided by the number of valid tokens of the whole batch, so gradients are summed only.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def last_of_step(stage: nn.Module, last: bool, zero: int) -> None:
    """Configures gradient synchronization; called before each backward pass. `last`: it is the last one before the
    optimizer's step.
    """
    for module in _divided(stage):
        module.set_is_last_backward(last)
        module.set_requires_gradient_sync(last or zero > 1, recurse=False)
        module.set_requires_all_reduce(last)
        module.set_reshard_after_backward(last or zero == 3, recurse=False)


def let_go(stage: nn.Module) -> None:
    """Reshards all parameters; called after passes without gradients. Gathered copies would be stale after the next
    optimizer step.
    """
    for module in _divided(stage):
        module.reshard()


def _divided(module: nn.Module) -> Iterator[FSDPModule]:
    return (each for each in module.modules() if isinstance(each, FSDPModule))


def widen(module: nn.Module, dtype: torch.dtype) -> None:
    """Converts parameters to `dtype` in place. A tied weight stays tied; parameters that must be exact as stored are
    unchanged.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}
    for path, each in module.named_modules():
        for leaf, parameter in each._parameters.items():
            if parameter is None or not parameter.is_floating_point() or parameter.dtype == dtype:
                continue
            if f"{path}.{leaf}".endswith(KEPT_AS_STORED):
                continue
            if parameter not in made:
                made[parameter] = nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad)
            each._parameters[leaf] = made[parameter]


def keep_whole(stage: nn.Module, device: torch.device) -> None:
    """Moves parameters that FSDP ignores to the rank's device, as FSDP does with the parameters that it shards."""
    for path, module in stage.named_modules():
        for leaf, parameter in list(module._parameters.items()):
            if parameter is None or not f"{path}.{leaf}".endswith(KEPT_AS_STORED):
                continue
            if not parameter.is_meta and (here := parameter.detach().to(device)).device != parameter.device:
                module._parameters[leaf] = nn.Parameter(here, parameter.requires_grad)


def _kept_as_stored(stage: Stage) -> set[nn.Parameter]:
    """Parameters that must be exact as stored; they are small, and every rank holds them whole."""
    return {p for name, p in stage.named_parameters() if name.endswith(KEPT_AS_STORED)}


def _experts(decoder: Decoder) -> Iterator[nn.Module]:
    from rondo.models.parts import Experts

    return (each for each in decoder.modules() if isinstance(each, Experts))
