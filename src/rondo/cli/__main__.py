"""`python -m rondo.cli`, the same as `rondo`."""

import sys

from rondo.cli.main import main

sys.exit(main())
