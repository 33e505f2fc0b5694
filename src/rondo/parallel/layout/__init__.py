"""Arithmetic of a layout: degrees for a number of ranks, pipeline cuts, and the slice of each tensor that a rank
owns.
"""
