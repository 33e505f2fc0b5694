"""Puts groups until it is killed, and says of each when the store has it."""

import sys
from pathlib import Path

from rondo.control.queue import Queue
from rondo.control.store import Store
from rondo.control.work import New

queue = Queue(Store(Path(sys.argv[1])))
while True:
    waited = [queue.put([New("m", "1"), New("m", "2")], "me") for _ in range(5)]
    for each in waited:
        sys.stdout.write(each.result().name + "\n")
        sys.stdout.flush()
