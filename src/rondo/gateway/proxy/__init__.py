"""A model request on its way to an engine.

Inputs are ASGI requests; outputs are the engine's response, byte for byte, and the tokens it used.

    fields.py    the few fields that routing needs; the engine validates the rest
    forward.py   key, limits, choice of an engine, retries before the first byte
    upstream.py  HTTP connections to engines
    metering.py  token counts in JSON responses and event streams
"""
