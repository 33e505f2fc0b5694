"""How far generation may run ahead of training: a closed form in three numbers.

Groups are numbered over the whole run, and group `number` is trained in step `number // prompts_per_step`. Under the
weights after s steps it may begin if that step is at most s + max_staleness. A step then trains on no token older than
max_staleness steps, whatever order groups finish in, and no group waits for one that may not begin. With 0 a step's
groups begin once the step before is done, which is synchronous; with 1 they are made while the step before trains.
"""

from __future__ import annotations


def admitted(steps_done: int, prompts_per_step: int, max_staleness: int) -> int:
    """The first group that may not begin yet."""
    return (steps_done + max_staleness + 1) * prompts_per_step
