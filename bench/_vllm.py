"""vLLM generating for many requests at once: run by rollout.py and whole_model.py with the interpreter of vLLM's
environment.

Reads the settings as one JSON line and loads the model. Each further line has the prompts, how many tokens each is to
get, and how many samples of each prompt; the answer has the seconds it took and the tokens. Every sample is a request;
where the prefix cache is on it shares the prompt, and is emptied before the clock starts. Where the line has `steps`,
the answers are greedy, and the seconds after which each token came are said too.
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
from vllm.sampling_params import RequestOutputKind


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


def generate_by_steps(
    llm: LLM, prompts: list[list[int]], lengths: list[int]
) -> tuple[list[list[int]], list[list[float]]]:
    """As `LLM.generate` does it, with a look at the clock after each step."""
    engine = llm.llm_engine
    answers: list[list[int]] = [[] for _ in prompts]
    times: list[list[float]] = [[] for _ in prompts]
    start = time.perf_counter()
    for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
        params.output_kind = RequestOutputKind.DELTA
        engine.add_request(str(i), {"prompt_token_ids": prompt}, params)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter() - start
        for output in outputs:
            tokens = output.outputs[0].token_ids
            answers[int(output.request_id)] += tokens
            times[int(output.request_id)] += [now] * len(tokens)
    return answers, times


def main() -> None:
    llm = LLM(**{"dtype": "float32", "disable_log_stats": True, **settings})
    reply(ready=True)
    for line in sys.stdin:
        question = json.loads(line)
        if "text" in question:
            reply(ids=llm.get_tokenizer().encode(question["text"]))
            continue
        llm.reset_prefix_cache()
        if question.pop("steps", False):
            answers, times = generate_by_steps(llm, **question)
            reply(answers=answers, times=times)
            continue
        start = time.perf_counter()
        answers = generate(llm, **question)
        reply(seconds=time.perf_counter() - start, answers=answers)


if __name__ == "__main__":
    main()
