"""Inference engine: scheduler, KV cache, model runner, sampler, speculative decoding, structured output, adapters.

Inputs are requests (token ids or text, `SamplingParams`, an optional adapter). Outputs are chunks of tokens with their
log-probabilities and the version of the weights that produced each token. The engine has no HTTP routes and no SQL; the
server and the RL loop both use it through the `Engine` protocol of `rondo.client.engine`.

One step of `core.py`: `schedule/` chooses requests and token counts within a token budget and returns a plan; `runner/`
executes the plan as one flat row of tokens over the paged KV cache; the sampler draws tokens; finished requests free
their blocks.

    core.py       the engine without threads: add, abort, step, weight updates
    schedule/     token-budget scheduler with continuous batching; pure Python, no tensors
    kv/           blocks, prefix cache, sliding windows, preemption by swapping to host memory
    runner/       batch layout, attention over the cache, CUDA graphs, compiled CPU step, sampler
    ranks/        tensor parallelism: the leading process and its followers
    weights/      LoRA adapters, weight reload without restart, sleep mode
    speculate/    speculative decoding: n-gram and draft-model proposals
    structured/   structured output: grammars compiled by llguidance, token masks
    entrypoints/  `LLM` for scripts, `AsyncEngine` for servers, loading a model folder
    metrics/      counters, histograms and the Prometheus exposition
    vllm/         vLLM behind the same protocol, as a child process or in this process
    config.py     settings, free of torch

Read `core.py` first, then `schedule/scheduler.py` and `runner/runner.py`.
"""
