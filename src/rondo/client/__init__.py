"""Types of requests and responses, the `Engine` protocol, and the HTTP client (`rondo.Client`).

This package is the contract between an engine and the code that uses one: the server, the RL loop, the benchmarks and
the tests. It is free of torch and of server code, so that a client needs neither.

Inputs are OpenAI-style JSON bodies or Python objects; outputs are validated frozen dataclasses (`SamplingParams`,
`GenerateRequest`, `TokenChunk`, ...) and, in the other direction, JSON or a stream of events.

    types.py       input and output of an engine: sampling parameters, requests, chunks
    engine.py      the `Engine` protocol, implemented by the native engine, vLLM and remote engines
    http.py        the HTTP client, synchronous and asynchronous, of `rondo serve` and vLLM
    verbs.py       operations under vLLM's names: pause, sleep, weight updates, adapters
    platform/      operations of a gateway: queued requests, training jobs, files, batches, the registry
    pool.py        choice of the least loaded engine among several
    protocol/      OpenAI's request and response bodies, field by field
    bench/         the load generator behind `rondo bench serve`
    structured.py  structured output: JSON schema, regex, grammar, choice

Read `types.py` and `engine.py` first.
"""
