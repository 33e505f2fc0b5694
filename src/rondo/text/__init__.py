"""Text: tokenizers, chat templates, incremental detokenization, parsers of tool calls and reasoning, BPE training.

Inputs are the tokenizer files of a Hugging Face folder, messages and token ids. Outputs are token ids, rendered
prompts, text that is emitted as soon as its characters are complete, and parsed messages with reasoning and tool calls.
Results equal the output of transformers; torch is not imported.

    tokenizer.py    `Tokenizer`: encode, decode, chat template
    detokenize.py   incremental detokenization for streams
    bpe.py          training of a byte-level BPE tokenizer
    conversation/   chat templates, messages, multi-turn token sequences, special tokens
    parsing/        streaming parsers of reasoning and tool calls, one format a model family
    gguf/           tokenizers in GGUF files, read and written
    bound.py        upper bound of a text's tokens, without tokenizing it

Read `tokenizer.py`, then `conversation/chat.py` and `parsing/dialect.py`.
"""

from rondo.text.bpe import train_bpe
from rondo.text.detokenize import Detokenizer
from rondo.text.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "train_bpe"]
