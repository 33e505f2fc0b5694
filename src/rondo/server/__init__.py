"""Engine server: one model behind the OpenAI API.

Inputs are HTTP requests: chat, completions, the Responses API, embeddings, scoring, tokenization, and the operator's
verbs (adapters, weight updates, sleep). Outputs are JSON bodies, server-sent events, Prometheus metrics and OpenAPI.
Routes translate between OpenAI's bodies and the `Engine` protocol; they contain no business rules, and the engine may
be native, vLLM or remote.

    app.py       the ASGI application: routes, middleware, health, metrics
    run.py       port, model, uvicorn, signals and draining
    served.py    the served model and the checks that every request passes
    routes/      one module a route or a group of routes
    answers/     from engine output to response bodies: reasoning, tool calls, streaming
    episodes.py  an OpenAI endpoint for each RL episode of an agent
    openapi.py   `/openapi.json`
    config.py    settings, free of torch

HTTP parts that the gateway will share are in `rondo.web`. Read `app.py`, then `routes/chat.py`.
"""
