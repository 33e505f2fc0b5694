"""Weight transfer from a learner to engines: versions, checksums, pushes within a process and to copies.

Inputs are the learner's parameters and a version number. Outputs are engines at that version: every push is
checksummed, and an engine never serves a mixture of two versions.

    directory.py    holders of each version of each model's weights, in this process
    in_place.py     push without a copy: learner and engine share the same tensors
    staged.py       push to engines with a copy: the old version serves until the new one is complete
    checksum.py     one checksum for a whole set of weights
    vllm_plugin.py  weight-transfer engine inside vLLM that loads a folder of safetensors

The plug-in is registered by the entry point `vllm.general_plugins` and runs in vLLM's process. The package contains
neither training nor serving logic. Read `directory.py`, then `in_place.py`.
"""
