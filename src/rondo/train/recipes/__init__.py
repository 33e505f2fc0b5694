"""Recipes: pretraining, supervised fine-tuning, preference and reward-model training.

A recipe chooses the data, its tokenization and the loss. Read `registry.py` first.
"""
