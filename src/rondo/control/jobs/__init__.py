"""Jobs as a service: durable rows, launchers that start them, and the reconciler that compares both.

Inputs are specifications (`rondo.jobs.spec`) of users. Outputs are running processes, states and events. The row
of a job has the intended state and the launcher reports the actual one; the reconciler compares both every few seconds,
and after any crash.

    book.py       submission, state changes by compare-and-set on (attempt, state), events
    states.py     the states of a job and the allowed changes
    reconcile.py  one pass: start, adopt, stop, retry
    beats.py      heartbeats: which ranks are late
    displaced.py  displaced attempts in a row, and faulty nodes
    request.py    nodes, ranks, GPUs, memory and time that a job needs
    order.py      order in which waiting jobs start
    launchers/    this machine, Slurm, Kubernetes, Ray; task files of SkyPilot

Read `states.py`, then `reconcile.py`.
"""
