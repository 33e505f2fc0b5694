"""Rondo: pretrain, fine-tune, tune with reinforcement learning and serve language models in one loop."""

__version__ = "0.1.0"
