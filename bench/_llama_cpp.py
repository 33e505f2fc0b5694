"""llama.cpp generating for many requests at once: run by rollout.py and whole_model.py with the interpreter of
llama.cpp's environment.

Reads the settings as one JSON line and loads the model. Each further line has the prompts, how many tokens each is to
get, and how many samples of each prompt; the answer has the seconds it took, the tokens, and the seconds after which
each of them came. Requests share each call of `llama_decode`, and those that are done leave the batch. A prompt with
several samples is computed once: the others get a copy of its cache. Each sequence has a cache of its own, which is
faster here than one for all. Keys and values are 16 bits wide, as is llama.cpp's default, or `exact`: fp32, as the
weights are. Flash attention is off then, because it would turn the whole cache into 16 bits at every step.
"""

import json
import os
import sys
import time
from typing import Any

settings = json.loads(sys.stdin.readline())
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever llama.cpp prints is not a reply

import llama_cpp as L  # noqa: E402

Token = tuple[int, int, int, bool]
"""Its id, its position, its sequence, and whether what follows it is asked for."""


class Engine:
    def __init__(self, file: str, sequences: int, context: int, threads: int, exact: bool) -> None:
        self.model = L.llama_model_load_from_file(file.encode(), L.llama_model_default_params())
        params = L.llama_context_default_params()
        params.n_ctx = sequences * context
        params.n_batch = params.n_ctx
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        if exact:
            params.type_k = params.type_v = L.GGML_TYPE_F32
            params.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = L.llama_init_from_model(self.model, params)
        self.memory = L.llama_get_memory(self.context)
        self.batch = L.llama_batch_init(params.n_batch, 0, 1)

    def decode(self, tokens: list[Token]) -> None:
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, asked) in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = asked
        if code := L.llama_decode(self.context, batch):
            sys.exit(f"llama_decode returned {code}")

    def generate(
        self, prompts: list[list[int]], lengths: list[int], samples: int, temperature: float
    ) -> tuple[list[list[int]], list[list[float]]]:
        """The tokens and when they came. `lengths` has one number for each sample of each prompt."""
        start = time.perf_counter()
        L.llama_memory_clear(self.memory, False)
        chains = [chain(temperature, seed) for seed in range(len(lengths))]
        rows, last = [], []
        for i, prompt in enumerate(prompts):
            end = len(prompt) - 1
            rows += [(token, at, i * samples, at == end) for at, token in enumerate(prompt)]
            last.append(len(rows) - 1)
        self.decode(rows)
        given = []
        for sequence, sampler in enumerate(chains):
            leader = sequence - sequence % samples
            if sequence != leader:
                L.llama_memory_seq_cp(self.memory, leader, sequence, -1, -1)
            given.append([L.llama_sampler_sample(sampler, self.context, last[sequence // samples])])
        came = [[time.perf_counter() - start] for _ in given]
        while active := [s for s, tokens in enumerate(given) if len(tokens) < lengths[s]]:
            self.decode(
                [(given[s][-1], len(prompts[s // samples]) + len(given[s]) - 1, s, True) for s in active]
            )
            for row, s in enumerate(active):
                given[s].append(L.llama_sampler_sample(chains[s], self.context, row))
            now = time.perf_counter() - start
            for s in active:
                came[s].append(now)
        for sampler in chains:
            L.llama_sampler_free(sampler)
        return given, came

    def tokenize(self, text: str) -> list[int]:
        encoded = text.encode()
        room = (L.llama_token * (len(encoded) + 1))()
        vocabulary = L.llama_model_get_vocab(self.model)
        count = L.llama_tokenize(vocabulary, encoded, len(encoded), room, len(room), False, True)
        return list(room[:count])


def chain(temperature: float, seed: int) -> Any:
    made = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
    if temperature == 0:
        L.llama_sampler_chain_add(made, L.llama_sampler_init_greedy())
    else:
        L.llama_sampler_chain_add(made, L.llama_sampler_init_temp(temperature))
        L.llama_sampler_chain_add(made, L.llama_sampler_init_dist(seed))
    return made


def reply(**facts: Any) -> None:
    print(json.dumps(facts), file=replies, flush=True)


L.llama_backend_init()
engine = Engine(**settings)
reply(ready=True)
for line in sys.stdin:
    question = json.loads(line)
    if "text" in question:
        reply(ids=engine.tokenize(question["text"]))
        continue
    start = time.perf_counter()
    answers, times = engine.generate(**question)
    reply(seconds=time.perf_counter() - start, answers=answers, times=times)
