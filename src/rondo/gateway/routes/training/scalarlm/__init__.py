"""ScalarLM's training API.

train.py    submission, in one form or in pieces, status, data, logs, checkpoints, control
publish.py  publication of a model
cluster.py  jobs and resources of the launchers
"""
