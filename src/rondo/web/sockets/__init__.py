"""Connections of a server.

protocol.py     uvicorn's HTTP/1.1 protocol with bounded headers and time-outs
connections.py  connections within limits, and how one is closed
hangup.py       the end of a connection, as a call
half_closed.py  clients that end their data after the request, and clients of HTTP/1.0
"""
