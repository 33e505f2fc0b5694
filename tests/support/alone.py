"""What a model says by itself: no engine, no cache."""

import random

import torch

from rondo.models import Decoder, Packed


@torch.no_grad()
def greedy(model: Decoder, prompt: list[int], count: int) -> list[int]:
    """The likeliest `count` tokens after the prompt, each from a forward pass over all before it."""
    tokens = list(prompt)
    for _ in range(count):
        row = torch.tensor(tokens)
        tokens.append(int(model(row, torch.arange(len(tokens)), Packed([0, len(tokens)]))[-1].argmax()))
    return tokens[len(prompt) :]


def random_prompts(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 97) for _ in range(rng.randrange(1, longest))] for _ in range(count)]
