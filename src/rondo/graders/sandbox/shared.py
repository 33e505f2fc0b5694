"""Sandboxes shared by all graders with the same packages."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from rondo.graders.sandbox.pool import Sandbox


@lru_cache(16)
def shared(packages: tuple[str, ...] = ()) -> Sandbox:
    return Sandbox(packages=packages)


@lru_cache(16)
def threads(packages: tuple[str, ...] = ()) -> ThreadPoolExecutor:
    """As many threads as workers: a task with a thread never waits for a worker."""
    return ThreadPoolExecutor(shared(packages).workers, "sandbox")


os.register_at_fork(after_in_child=threads.cache_clear)  # threads remain in the parent
