"""Run in a process of its own: Hugging Face's tokenizers encodes the texts of a JSON Lines file, `RAYON_NUM_THREADS` of
them at a time. Prints the tokens and the seconds, reading and parsing included."""

import json
import sys
import time

import tokenizers

BATCH = 512

tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
tokenizer.encode_batch(["warm", "up"] * 64)
began, tokens = time.perf_counter(), 0
with open(sys.argv[2], "rb") as lines:
    texts = [json.loads(line)["text"] for line in lines]
for at in range(0, len(texts), BATCH):
    tokens += sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts[at : at + BATCH]))
print(tokens, time.perf_counter() - began)
