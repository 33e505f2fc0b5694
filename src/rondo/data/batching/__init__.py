"""From documents to the rows of a training step: data sets, groups, sampling order, packing, loading with prefetch.

Pure logic apart from the prefetch thread: nothing here knows where documents are stored.
"""
