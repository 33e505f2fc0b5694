"""Forks of `support.forks` as processes with a parent and children."""

import os
import subprocess

from support.forks import python

PROGRAM = """
import os
from rondo.base.process import start
print(os.getppid(), start(["true"], end_with_parent=True).wait())
"""


def test_a_fork_has_the_parent_of_its_client_and_its_children_have_the_fork() -> None:
    done = subprocess.run([python(), "-c", PROGRAM], capture_output=True, text=True, timeout=240)
    assert (done.stdout.split(), done.stderr) == ([str(os.getpid()), "0"], "")
