"""Losses over packed rows. Each returns sums, and the learner divides by the counts of the whole batch.

`sums.py` is cross-entropy, `policy.py` the one RL surrogate, `value.py` the critic's loss, `preference.py` DPO, IPO,
SimPO, KTO and Bradley-Terry.
"""
