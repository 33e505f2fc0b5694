"""Megatron-Core as a second learner, behind the same verbs."""
