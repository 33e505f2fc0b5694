"""Tokenizers in GGUF files: conversion of `tokenizer.ggml.*` metadata to the files of a Hugging Face tokenizer and
back.

`reading.py` builds tokenizer.json, `writing.py` the metadata, and `pretokenizers.py` has llama.cpp's names for the
expressions that split text.
"""
