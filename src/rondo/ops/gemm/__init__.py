"""Matrix products: linear layers, quantized weights, FP8, low-rank (LoRA) products and mixture of experts."""
