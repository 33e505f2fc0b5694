"""Supervisor of `rondo up`: starts the gateway and the engines, restarts them, and stops them in order.

Inputs are commands and environments of processes. Outputs are running processes, one rotating log file for each, and a
state file that `rondo ps`, `rondo logs` and `rondo down` read. Every child ends with the supervisor: when it is killed,
the kernel kills the children, and the next `rondo up` starts from nothing.

    on_demand.py   engines that start with the first request for their model, within a memory budget
    catalog.py     models of this machine and their memory, which `rondo up` supplies
    budget.py      errors of models without room in the budget
    control.py     HTTP endpoint for the gateway: list, load and unload models
    calls.py       calls of the supervisor to its engines
    config.py      pools of engines: model, number, tensor parallelism
    parts.py       commands of the gateway and of each engine
    part.py        one supervised process: start, exit, back-off, restart
    supervisor.py  all parts: order of start and stop, signals, state file
    state.py       reading the state file from other processes
    logs.py        rotating log files and reading them by byte offset

Read `supervisor.py` first.
"""
