"""Megatron-Core as a second learner with the same interface as the native one. Needs the extra `megatron`."""
