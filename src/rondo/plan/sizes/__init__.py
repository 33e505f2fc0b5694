"""Model sizes: parameters and FLOPs per token, from a Hugging Face config or by the name of a published model."""
