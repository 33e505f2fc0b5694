"""Operations of `rondo.Client` that only a gateway has.

queue.py     queued requests: generate, submissions, results, dead letters
jobs.py      training jobs, files and batches
uploads.py   files of a job, streamed from disk
curves.py    the live curve of a job in a notebook
registry.py  models: aliases, promotion, lineage
"""
