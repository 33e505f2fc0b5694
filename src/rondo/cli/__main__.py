"""`python -m rondo.cli`, the same as `rondo`."""

from rondo.cli.main import program

program()
