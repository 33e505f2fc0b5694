"""llama.cpp's side of test_gguf_llama_cpp.py: each line of JSON is a task, each reply a line of JSON.

{"quantize": FILE, "to": FILE, "type": "Q4_K_M"}
{"file": FILE, "tokens": [...]}                  logits after each token
{"file": FILE, "texts": [...]}                   token ids of each text, without BOS
{"file": FILE, "prompt": [...], "count": N}      greedy continuation
"""

import ctypes
import json
import os
import sys
from typing import Any

replies = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # llama.cpp's own messages are not replies

import llama_cpp as L  # noqa: E402


class Model:
    def __init__(self, file: str, vocab_only: bool = False) -> None:
        params = L.llama_model_default_params()
        params.vocab_only, params.use_extra_bufts = vocab_only, False
        self.model = L.llama_model_load_from_file(file.encode(), params)
        if not self.model:
            sys.exit(f"llama.cpp does not load {file}")
        self.vocab = L.llama_model_get_vocab(self.model)

    def logits(self, tokens: list[int]) -> list[list[float]]:
        params = L.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = 256, 1, 1
        params.type_k = params.type_v = L.GGML_TYPE_F32
        params.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED
        context = L.llama_init_from_model(self.model, params)
        batch = L.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, i, 1, 0
            batch.logits[i] = 1
        if L.llama_decode(context, batch):
            sys.exit("llama_decode failed")
        size = L.llama_vocab_n_tokens(self.vocab)
        rows = [L.llama_get_logits_ith(context, i)[:size] for i in range(len(tokens))]
        L.llama_batch_free(batch)
        L.llama_free(context)
        return rows

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(count):
            row = self.logits(tokens)[-1]
            tokens.append(row.index(max(row)))
        return tokens[len(prompt) :]

    def encode(self, text: str) -> list[int]:
        raw = text.encode()
        room = (L.llama_token * (len(raw) + 8))()
        count = L.llama_tokenize(self.vocab, raw, len(raw), room, len(room), False, True)
        return list(room[:count])


def quantize(task: dict[str, Any]) -> bool:
    params = L.llama_model_quantize_default_params()
    params.ftype = getattr(L, f"LLAMA_FTYPE_MOSTLY_{task['type']}")
    params.nthread = 1
    done = L.llama_model_quantize(task["quantize"].encode(), task["to"].encode(), ctypes.byref(params))
    return done == 0


def reply(task: dict[str, Any]) -> Any:
    if "quantize" in task:
        return quantize(task)
    model = Model(task["file"], vocab_only="texts" in task)
    if "texts" in task:
        return [model.encode(text) for text in task["texts"]]
    if "count" in task:
        return model.greedy(task["prompt"], task["count"])
    return model.logits(task["tokens"])


for line in sys.stdin:
    replies.write(json.dumps(reply(json.loads(line))) + "\n")
