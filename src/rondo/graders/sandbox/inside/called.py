"""Process that calls one function of a program: descriptor 3 has its source, 4 the call, 5 receives the value.

The program can modify this whole process, so the value is only a claim of the program.
"""

import json
import os
from typing import Any

from . import literal
from .script import execute, forget_harness, new_module, open_streams, read_all, run

NAME = "solution"


def life() -> int:
    source, asked = read_all(3), json.loads(read_all(4))
    open_streams()
    forget_harness()
    return run(lambda: _call(source, asked))


def _call(source: str, asked: dict[str, Any]) -> None:
    names = vars(new_module(NAME))
    execute(source, f"{NAME}.py", names)
    owner, _, last = asked["function"].rpartition(".")
    if (owner or last) not in names:
        raise NameError(f"the program has no {owner or last!r}")
    function = names[owner or last]
    if owner:  # "Solution.twoSum": a method of a new object
        function = getattr(function(), last)
    value = function(*literal.decode(asked["args"]), **literal.decode(asked["kwargs"]))
    data = json.dumps(literal.encode(value)).encode()
    while data:
        data = data[os.write(5, data) :]
