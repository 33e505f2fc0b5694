"""GGUF files: a model in one file, as llama.cpp uses it.

`architectures.py` maps names between GGUF and Hugging Face, `config.py` builds a config.json and `fields.py` the
metadata, `header.py` places tensors, `blocks.py` has the quantized number formats, `tensors.py` opens the weights and
`export.py` writes a file. Everything else in Rondo uses the path of a GGUF file like that of a model folder.
"""
