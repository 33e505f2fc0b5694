"""Verbs below a verb: `rondo model new`, `rondo model quantize`, `rondo rl rollouts`, `rondo bench throughput`, ..."""
