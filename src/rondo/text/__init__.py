"""Tokenizer files, chat templates, incremental detokenizing, parsers of tool calls and reasoning, BPE training."""

from rondo.text.bpe import train_bpe
from rondo.text.detokenize import Detokenizer
from rondo.text.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "train_bpe"]
