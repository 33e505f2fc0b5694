"""`rondo gateway`: one URL with API keys in front of engines."""

from __future__ import annotations

from rondo.base.telemetry.log import get_logger
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.scopes import GATEWAY
from rondo.cli.options.short import read_settings

log = get_logger("rondo.cli.service.gateway")


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo gateway", "Serve one URL with API keys in front of engines.", GATEWAY)
    parser.add_argument("engines", nargs="*", metavar="URL", help="an engine, such as http://127.0.0.1:8001")
    parser.epilog = (
        "A new store gets an admin's key, in RONDO_HOME/admin-key; `rondo keys` makes more. `rondo up` starts a "
        "gateway together with its engines."
    )
    command = read_settings(parser, argv)
    if command is None:
        return 0
    config = command.config.tree.gateway
    if engines := parser.parse_args(command.rest).engines:
        config = config.model_copy(update={"engines": engines})
    from rondo.cli.platform.remote import admin_key_place
    from rondo.gateway.serve import run_gateway
    from rondo.web.exposure import listen
    from rondo.web.run import url_of

    listener = listen(config)
    url = url_of(listener)

    def on_start() -> None:
        log.info("gateway is listening", extra={"url": url, "engines": config.engines})
        print(f"\n  {url}   admin key: {admin_key_place()}\n", flush=True)

    try:
        run_gateway(config, listener, on_start)
    finally:
        listener.close()
    return 0
