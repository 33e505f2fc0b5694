"""Submits groups until it is killed, and prints the name of each once the store has confirmed it."""

import sys

from rondo.control.queue.queue import Queue
from rondo.control.queue.work import New
from rondo.control.store.store import Store

queue = Queue(Store(sys.argv[1]))
while True:
    waited = [queue.put([New("m", "1"), New("m", "2")], "me") for _ in range(5)]
    for each in waited:
        sys.stdout.write(each.result().name + "\n")
        sys.stdout.flush()
