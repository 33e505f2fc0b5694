"""A worker that never says anything."""

import sys

sys.stdin.read()
