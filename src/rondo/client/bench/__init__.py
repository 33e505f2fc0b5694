"""Load generator for any OpenAI server: `rondo bench serve`.

`prompts` makes the prompts, `arrivals` schedules the requests, `wire` sends one over a socket, `load` sends all of
them, `figures` computes vLLM's metrics, `report` prints them.
"""
