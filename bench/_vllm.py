"""vLLM generating for many requests at once: run by rollout.py with the interpreter of vLLM's environment.

Reads the settings as one JSON line and loads the model. Each further line has the prompts, how many tokens each is to
get, and how many samples of each prompt; the answer has the seconds it took and the tokens. Every sample is a request;
where the prefix cache is on it shares the prompt, and is emptied before the clock starts.
"""

import json
import os
import sys
import time
from typing import Any

if __name__ == "__main__":  # vLLM's own processes import this file too
    settings = json.loads(sys.stdin.readline())
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints is not a reply

from vllm import LLM, SamplingParams


def reply(**facts: Any) -> None:
    print(json.dumps(facts), file=replies, flush=True)


def generate(
    llm: LLM, prompts: list[list[int]], lengths: list[int], samples: int, temperature: float
) -> list[list[int]]:
    requests: Any = [{"prompt_token_ids": prompt} for prompt in prompts for _ in range(samples)]
    params = [
        SamplingParams(temperature=temperature, max_tokens=length, ignore_eos=True, detokenize=False)
        for length in lengths
    ]
    outputs = llm.generate(requests, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def main() -> None:
    llm = LLM(dtype="float32", disable_log_stats=True, **settings)
    reply(ready=True)
    for line in sys.stdin:
        question = json.loads(line)
        if "text" in question:
            reply(ids=llm.get_tokenizer().encode(question["text"]))
            continue
        llm.reset_prefix_cache()
        start = time.perf_counter()
        answers = generate(llm, **question)
        reply(seconds=time.perf_counter() - start, answers=answers)


if __name__ == "__main__":
    main()
