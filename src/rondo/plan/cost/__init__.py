"""Costs of one candidate: memory of each rank, bytes sent, and step time, for a layout on a cluster.

`calibration.py` has the fitted constants and the published rows that they were fitted on.
"""
