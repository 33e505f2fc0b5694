"""Estimate of a layout and a policy: memory, traffic and time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rondo.plan.cost.cluster import Cluster
from rondo.plan.cost.layout import Layout, Policy, StepBatch, microbatches
from rondo.plan.cost.memory import Memory, memory
from rondo.plan.cost.time import StepTime, bubble_share, step
from rondo.plan.cost.traffic import Traffic, traffic
from rondo.plan.sizes.model import ModelShape


@dataclass(frozen=True)
class Estimate:
    shape: ModelShape
    cluster: Cluster
    layout: Layout
    policy: Policy
    batch: StepBatch

    @cached_property
    def memory(self) -> Memory:
        return memory(self.shape, self.layout, self.policy, self.batch)

    @cached_property
    def traffic(self) -> Traffic:
        return traffic(self.shape, self.layout, self.policy, self.batch)

    @cached_property
    def step(self) -> StepTime:
        return step(self.shape, self.cluster, self.layout, self.policy, self.batch)

    @property
    def fits(self) -> bool:
        return self.fits_in(self.cluster.gpu.memory)

    def fits_in(self, room: float) -> bool:
        return self.memory.total <= room and self.memory.host <= self.cluster.gpu.host_memory

    @property
    def microbatches(self) -> int:
        return microbatches(self.layout, self.policy, self.batch)

    @property
    def bubble(self) -> float:
        """Ratio of idle time to busy time."""
        return bubble_share(self.layout, self.microbatches)

    @cached_property
    def seconds(self) -> float:
        return self.step.seconds

    @property
    def speed(self) -> float:
        """Tokens per second per GPU."""
        return self.batch.tokens / self.seconds / self.cluster.gpus

    def flops(self, *, causal: bool) -> float:
        """Model FLOPs per second per GPU; recomputation is not counted."""
        return self.speed * self.shape.flops_per_token(self.batch.length, causal=causal)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization with full attention, relative to the peak of the precision."""
        return self.flops(causal=False) / self.cluster.gpu.peak(self.policy.precision)

    @property
    def mfu_causal(self) -> float:
        return self.flops(causal=True) / self.cluster.gpu.peak(self.policy.precision)
