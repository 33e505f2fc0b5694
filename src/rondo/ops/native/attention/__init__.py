"""Attention in C: decode and prefill over pages, and packed rows with the same order of summation."""
