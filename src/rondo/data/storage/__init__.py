"""Prepared shards and the places they are stored in: local folders, object stores, and a bounded local cache.

`index.json` describes a folder of shards and is written last; `shards.py` reads a document by its number.
"""
