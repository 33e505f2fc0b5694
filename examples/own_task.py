"""A task of your own for `rondo rl`: double a number. Only the right number earns a reward; the other part is logged.

rondo rl --model demo --task examples/own_task.py:DOUBLE --rl.steps=20
"""

from rondo.graders import Score
from rondo.rl.tasks.custom import Custom


def make(random):
    n = random.randrange(1000)
    return f"double {n}", {"n": n}


def grade(facts, answer):
    correct = answer.strip() == str(2 * facts["n"])
    return Score("ok", correct, {"correct": correct, "number": answer.strip().isdecimal()})


DOUBLE = Custom(make, grade, max_tokens=6)
