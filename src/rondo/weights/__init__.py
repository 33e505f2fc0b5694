"""Checkpoint engine: versions of a model's weights from learners to engines.

Inputs are a learner's shards with their sharding, and a version number. Outputs are engines at that version: every
bucket is verified, and an engine never serves a mixture of two versions.

    publisher.py    the learner's side: registers shards, pushes versions
    shards.py       shards under Hugging Face names, for every layout of parameters
    manifest.py     layout of a version in a file, its buckets and checksums
    transports/     segments in shared memory, HTTP, object stores, a trainer's broadcast
    plan/           owner, receiver and link of every byte; simulation
    directory/      versions and their holders with leases: in this process, or in etcd
    service.py      `rondo weights serve`: a copy of the current version for a host
    in_place.py     push without a copy: learner and engine share the same tensors
    staged.py       push within a process to an engine with a copy
    vllm_plugin.py  weight-transfer engine inside vLLM

The plug-in is registered by the entry point `vllm.general_plugins` and runs in vLLM's process. The package contains
neither training nor serving logic. Read `publisher.py`, then `transports/segment.py`.
"""
