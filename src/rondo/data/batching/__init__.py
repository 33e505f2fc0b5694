"""Conversion of documents to the rows of a training step: data sets, groups, sampling order, packing, loading with
prefetch.

Pure logic apart from the prefetch thread, and independent of the storage of documents.
"""
