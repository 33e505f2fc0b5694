"""Norms, activations, rotary embedding, log-probabilities and sampling in C."""
