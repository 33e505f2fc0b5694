"""Jobs on disk: the folder of a training or RL job, its specification and its state.

A job is named by the SHA-256 of its specification (config, model fingerprint, data hash), so the same specification is
the same job, and starting it again resumes it. The package is free of torch, so that the command line, the server and
later the gateway read jobs without loading the trainer.

Inputs are a specification or a hash prefix. Outputs are the folder `RONDO_HOME/jobs/<hash>` and its files:

    spec.json       the canonical specification
    origin.json     model name and start time, which are not part of the hash
    status.json     queued, starting, running, succeeded, failed, cancelled
    metrics.jsonl   one line of metrics a step
    export/         the resulting model; adapter/ for a job that trains an adapter

A file lock allows one process at a time to work in a folder.

    folders.py  which jobs exist, and lookup by hash prefix
    job.py      creation, locking, state changes, metrics

Read `job.py` first.
"""
