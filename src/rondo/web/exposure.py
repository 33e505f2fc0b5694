"""Where the server may listen: on a public address only with an API key, or with a flag that allows it without."""

from __future__ import annotations

import socket

from rondo.base.errors import ConfigError
from rondo.base.telemetry.log import get_logger
from rondo.web.config import ListenConfig, is_loopback
from rondo.web.run import bind

log = get_logger("rondo.server")


def listen(config: ListenConfig) -> socket.socket:
    """The bound port, or an error that names the remedy."""
    listener = bind(config.host, config.port)
    if not config.guarded and not config.allow_public_without_key and not is_local(listener):
        listener.close()
        raise ConfigError(
            f"Without an API key the server does not listen on {config.host or 'every interface'}, which other "
            "machines can reach. Set --api-key KEY (of a gateway: --keys required), listen on 127.0.0.1, or allow it "
            "with --allow-public-without-key.",
            param="server.api_key",
        )
    return listener


def warn_of_no_key(config: ListenConfig, listener: socket.socket) -> None:
    if not config.guarded:
        reach = "this machine" if is_local(listener) else "every machine that reaches this address"
        log.warning(f"no API key is set: all programs on {reach} can use the model. Set --api-key KEY.")


def is_local(listener: socket.socket) -> bool:
    """Whether only this machine can connect."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    return is_loopback(listener.getsockname()[0])
