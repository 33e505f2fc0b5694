"""Parallel tokenization of sources into shards: a pool of worker processes, each with one part of a file at a time.

A dead worker is replaced, and a part that kills workers repeatedly is reported. Read `prepare.py` first.
"""
