"""The learner's half of an RL step: advantages, packing, importance sampling, critic, reference and teacher models.

`learning.py` runs the epochs and mini-batches of a step. `device_sharing.py` offloads models that do not fit on the
device together. Read `advantages.py` first: it is plain arithmetic without tensors.
"""
