"""`python -m rondo`, the same as `rondo`: for launchers, as in `torchrun -m rondo train ...`."""

from rondo.cli.main import program

program()
