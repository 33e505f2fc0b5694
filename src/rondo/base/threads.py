"""How worker threads wait for each other."""

import os

SPINS = "2000"


def yield_soon() -> None:
    """Let waiting OpenMP threads sleep after about 0.1 ms instead of 20, unless the environment sets the time. Called
    at the import of `rondo`, since it has an effect only before torch is imported.

    A small model's step is thousands of short parallel regions. With the default, as soon as another process wants one
    of the cores, the threads that wait at each region's end burn the very core the last one needs: a step measured
    beside other work on two cores took five times as long.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
