"""Records of an RL job: stored rollouts and queries over them, metrics, events, alarms for reward hacking, plots.

`observer.py` is called after each step; alarms and storage errors do not stop the job.
"""
