"""Costs of one candidate: memory of each rank, bytes sent, and step time, for a layout on a cluster.

`calibration.py` holds the constants that no formula yields, with the published rows they were fitted on.
"""
