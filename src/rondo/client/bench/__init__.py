"""Load for any OpenAI server, and what it took: `rondo bench serve`.

`prompts` makes the questions, `arrivals` says when each is asked, `wire` asks one over a socket, `load` asks all of
them, `figures` turns what came back into vLLM's figures, `report` shows them.
"""
