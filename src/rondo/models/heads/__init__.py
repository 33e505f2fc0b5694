"""Additional heads and hooks of a decoder: a scalar reward head, a value head that shares the layers with the policy,
and additive outputs for several adapters in one forward pass.
"""
