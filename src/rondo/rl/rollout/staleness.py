"""Staleness limit: how far generation may run ahead of training, in closed form.

Groups are numbered over the whole run, and group `number` is trained in step `number // prompts_per_step`. Under the
weights after s steps a group may start if its step is at most s + max_staleness. A step then trains on no token older
than max_staleness steps in any order of completion, and no group waits for an inadmissible one. With 0, the groups of
a step start after the previous step, which is synchronous; with 1, they are generated while the previous step trains.
"""

from __future__ import annotations


def admitted(steps_done: int, prompts_per_step: int, max_staleness: int) -> int:
    """The number of the first group that may not start yet."""
    return (steps_done + max_staleness + 1) * prompts_per_step
