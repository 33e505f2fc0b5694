"""`rondo chat` and `rondo run`: conversations with a model in this process or behind an OpenAI-compatible URL.

Input is a model's name or a URL, output is text on the terminal. A model of this machine is loaded into this process,
behind the same application as `rondo serve` on a private socket, so that both kinds of model are one `Speaker`.

Read `speaker.py` first (a model that answers), then `session.py` (the conversation and its commands).
"""
