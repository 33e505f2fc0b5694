"""HTTP server parts without routes: access control, errors, request bodies, server-sent events, the HTTP/1.1 protocol.

The engine server and the gateway use them. Inputs are ASGI scopes and bodies; outputs are bounded bodies,
responses, error bodies in OpenAI's shape, access-log lines and spans. Torch is not imported.

    run.py       binds the port, serves until a signal, drains
    access.py    outermost middleware: request ids, access log, spans, last line of error handling
    errors.py    exceptions as HTTP status codes and OpenAI error bodies
    http.py      bounded request bodies, event streams, detection of client disconnects
    admin.py     routes that need the admin key
    config.py    settings that both servers have: address, connections, time-outs, logs
    exposure.py  public addresses only with keys
    hosts.py     Host and Origin checks against web pages
    sockets/     connections: the HTTP/1.1 protocol, limits, half-closed clients, hang-ups

A request passes through `sockets/protocol.py`, `access.py` and then a route, which reads its body with `http.py`. Read
`access.py` first.
"""
