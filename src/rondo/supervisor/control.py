"""Control endpoint of the supervisor for the gateway: JSON over HTTP on a loopback address, with a key.

GET  /models[?fresh]            budget, and the state of each model that can be loaded
POST /ensure {"model": NAME}    loads the model; answers with the URLs of its engines when they are ready. With
                                "loadable": {...}, a model of the registry that the supervisor does not list
POST /unload {"model": NAME}    ends the engine of a model that was loaded on demand
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rondo.base.errors import InvalidRequest, NotFound, RondoError, Unauthorized
from rondo.base.telemetry.log import get_logger
from rondo.supervisor.catalog import Loadable
from rondo.supervisor.on_demand import OnDemand

log = get_logger("rondo.supervisor")

LARGEST_BODY = 64 << 10
BODY_SECONDS = 10.0


class ControlEndpoint:
    """Bound at once, so that its address is known to the gateway's environment; served after `begin`."""

    def __init__(self) -> None:
        self.key = secrets.token_urlsafe(24)
        self._server = _Server(self.key)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def env(self) -> Mapping[str, str]:
        """Environment of the gateway."""
        return {"RONDO_GATEWAY_SUPERVISOR": self.url, "RONDO_GATEWAY_SUPERVISOR_KEY": self.key}

    def begin(self, engines: OnDemand) -> None:
        self._server.engines = engines
        threading.Thread(target=self._server.serve_forever, name="control", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    engines: OnDemand

    def __init__(self, key: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.key = key

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("a control connection failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = BODY_SECONDS

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        try:
            status, body = 200, self._result()
        except RondoError as error:
            told = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
            status, body = error.status, {"error": told}
        except OSError as error:  # of the disk; a lost connection fails again below
            log.warning(f"control request failed: {error}")
            status, body = 500, {"error": {"message": str(error), "code": "supervisor_failed"}}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _result(self) -> dict[str, Any]:
        given = self._body()
        expected = f"Bearer {self.server.key}".encode()
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), expected):
            raise Unauthorized("The control endpoint of the supervisor needs its key.")
        engines = self.server.engines
        match self.command, self.path:
            case "GET", "/models":
                return engines.state()
            case "GET", "/models?fresh":
                return engines.state(fresh=True)
            case "POST", "/ensure":
                if (offered := _offered(given)) is not None:
                    engines.offer(offered)
                return {"urls": engines.ensure(_model(given))}
            case "POST", "/unload":
                engines.unload(_model(given))
                return {}
        raise NotFound(f"The supervisor has no route {self.command} {self.path}.")

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            self.close_connection = True  # the rest of the body is not read
            raise InvalidRequest(f"The body must have at most {LARGEST_BODY} bytes.")
        return self.rfile.read(int(length))

    def log_message(self, format: str, *args: object) -> None:
        log.debug("control " + format % args)


def _model(body: bytes) -> str:
    try:
        given = json.loads(body)
        model = given["model"]
    except (ValueError, KeyError, TypeError):
        model = None
    if not isinstance(model, str) or not model:
        raise InvalidRequest('The body must be {"model": NAME}.', param="model")
    return model


def _offered(body: bytes) -> Loadable | None:
    try:
        told = json.loads(body).get("loadable")
        return None if told is None else Loadable(**told)
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidRequest(f"loadable is not a model: {error}", param="loadable") from None
