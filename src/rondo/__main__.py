"""`python -m rondo`, the same as `rondo`: for launchers, as in `torchrun -m rondo train ...`."""

import sys

from rondo.cli.main import main

sys.exit(main())
