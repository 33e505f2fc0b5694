"""Transfer plans: the owner, the receiver and the link of every byte. Pure arithmetic without torch.

`boxes.py` has regions of tensors and their bytes in a file, `planner.py` maps each wanted region to its nearest owner,
`layouts.py` describes the shards of parallel learners and engines, and `simulate.py` predicts the time of a plan.
"""
