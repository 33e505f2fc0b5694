"""Checkpoints: tensors of all ranks by PyTorch's distributed checkpoints, verified before use, in any layout.

`saving.py` writes while training continues, `checkpoint.py` is the folder format, `states.py` the tensor names, and
`export.py` writes a Hugging Face model.
"""
