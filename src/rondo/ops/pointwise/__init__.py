"""Pointwise operations: RMS norm, gated activations (SwiGLU, GeGLU) and rotary position embedding."""
