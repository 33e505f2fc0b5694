"""Arithmetic of a layout: degrees for a number of ranks, pipeline cuts, and which slice of each tensor a rank owns."""
