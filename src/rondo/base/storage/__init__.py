"""Files and folders: atomic writes, folder exchange, content hashes and the paths under `RONDO_HOME`.

`files.py` is the only place that renames a temporary file into place; `hashing.py` computes the names of jobs.
"""
