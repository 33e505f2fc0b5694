"""For all tests and the processes they start: one thread each, since there is a worker a core, and none that spins."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from rondo.base.threads import yield_soon

yield_soon()
