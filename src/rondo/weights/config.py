"""Settings of weight transfer. Torch-free."""

from __future__ import annotations

from pydantic import Field

from rondo.base.settings.config import Section
from rondo.client.engine import RunningRequests


class WeightsConfig(Section):
    folder: str = Field(
        "/dev/shm",
        description="folder of the segments that processes of this host share; a memory file system",
    )
    bucket_bytes: int = Field(
        64 << 20, ge=1 << 10, description="bytes that are copied, transferred and verified together"
    )
    threads: int = Field(2, ge=1, description="threads that copy and verify buckets")
    requests: RunningRequests = Field(
        "retain",
        description="running requests at a switch: retain continues with their KV cache, recompute computes it again "
        "with the new weights, abort ends them",
    )
    lease_seconds: float = Field(
        30.0, gt=0, description="lease of an owner in the directory, renewed at a third of it"
    )
