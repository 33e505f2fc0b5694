"""Small C kernels, compiled for this very CPU when first needed; without a compiler only speed is lost."""
