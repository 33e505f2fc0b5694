"""Matrix products: linear layers, weights of few bits, FP8, low-rank (LoRA) products and mixture of experts."""
