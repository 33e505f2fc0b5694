"""A task of your own for `rondo rl`: double a number.

rondo rl --model demo --task examples/own_task.py:DOUBLE --rl.steps=20
"""

from rondo.rl.tasks.custom import Custom


def make(random):
    n = random.randrange(1000)
    return f"double {n}", {"n": n}


def grade(facts, answer):
    return {"number": answer.isdecimal(), "correct": answer == str(2 * facts["n"])}


DOUBLE = Custom(make, grade, max_tokens=6)
