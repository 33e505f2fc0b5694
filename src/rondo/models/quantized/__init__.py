"""Checkpoints of quantized weights: what their config says, reading each format into the one form, and making them."""
