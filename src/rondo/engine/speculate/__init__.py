"""Guessing a request's next tokens, so that one step computes several of them.

A decoding request may carry proposed tokens: the model computes them in the same step as its last token, and the
sampler gives a token at each of their positions, from the model's own distribution and with that position's own random
number. A proposal counts while the sampled token equals it. That is rejection sampling for a proposal that is certain
of itself, and since every position has its random number, the tokens are those of an engine that does not speculate.
"""
