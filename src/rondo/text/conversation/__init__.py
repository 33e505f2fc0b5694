"""Conversations: chat templates (Jinja, as in transformers), OpenAI messages, special tokens, multi-turn token
sequences.

`dialogue.py` extends a conversation without re-tokenizing sampled tokens, which RL needs.
"""
