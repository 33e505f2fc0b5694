"""vLLM's beam search over a folder, run by test_vllm_beam.py with the interpreter of vLLM's environment: reads the
searches as JSON, and writes the beams of each."""

import json
import os
import sys

if __name__ == "__main__":  # vLLM's own processes import this file too
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints is no beam

    from vllm import LLM
    from vllm.sampling_params import BeamSearchParams

    asked = json.load(sys.stdin)
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    llm = LLM(asked["folder"], dtype="float32", enforce_eager=True, max_model_len=256, max_logprobs=20)
    found = [
        [
            [(beam.tokens, beam.cum_logprob) for beam in output.sequences]
            for output in llm.beam_search(prompts, BeamSearchParams(**search))
        ]
        for search in asked["searches"]
    ]
    print(json.dumps({"end": llm.get_tokenizer().eos_token_id, "found": found}), file=replies, flush=True)
    # Left to the interpreter, what ends vLLM's threads now and then aborts the process.
    llm.llm_engine.engine_core.shutdown()
    os._exit(0)
