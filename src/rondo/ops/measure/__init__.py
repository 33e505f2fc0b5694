"""Measurements of this machine: memory bandwidth, arithmetic peak, and the share that each operation reaches.

Used by `rondo doctor` and the roofline benchmark.
"""
