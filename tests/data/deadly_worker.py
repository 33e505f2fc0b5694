"""A worker that is killed at its first task."""

import os
import signal
import sys

sys.stdin.readline()
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
