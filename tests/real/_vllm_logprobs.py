"""Log-probabilities of prompts by vLLM, run by test_vllm_quantized.py with the interpreter of vLLM's environment: reads
a folder, a type and prompts as JSON, and writes of each prompt those of its own tokens but the first."""

import json
import os
import sys

if __name__ == "__main__":  # vLLM's own processes import this file too
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints is no answer

    from vllm import LLM, SamplingParams

    asked = json.load(sys.stdin)
    llm = LLM(asked["folder"], dtype=asked["dtype"], enforce_eager=True, max_model_len=256)
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in asked["prompts"]],
        SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0),
    )
    found = [
        [entry[token].logprob for token, entry in zip(prompt[1:], output.prompt_logprobs[1:], strict=True)]
        for prompt, output in zip(asked["prompts"], outputs, strict=True)
    ]
    print(json.dumps(found), file=replies, flush=True)
    # Left to the interpreter, what ends vLLM's threads now and then aborts the process.
    llm.llm_engine.engine_core.shutdown()
    os._exit(0)
