"""Speculative decoding: proposed tokens are verified by the model in the same step as a request's last token.

The sampler draws a token at each proposed position from the model's own distribution and with that position's own
random number, and a proposal is accepted while the drawn token equals it. The output is therefore identical to decoding
without speculation. Proposals come from n-grams of the request (`ngram.py`) or from a draft model (`draft.py`);
`controller.py` adapts their number to the acceptance rate.
"""
