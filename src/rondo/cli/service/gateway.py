"""`rondo gateway`: one URL with API keys in front of engines."""

from __future__ import annotations

from rondo.base.telemetry.log import get_logger
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.tree import read_command_line

log = get_logger("rondo.cli.service.gateway")

SHORT = {"--host": "--gateway.host", "--port": "--gateway.port", "--engine": "--gateway.engines"}


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo gateway", "Serve one URL with API keys in front of engines.")
    parser.add_argument("engines", nargs="*", metavar="URL", help="an engine, such as http://127.0.0.1:8001")
    parser.add_argument("--host", help="address to listen on (gateway.host, 127.0.0.1)")
    parser.add_argument("--port", help="port to listen on (gateway.port, 8000)")
    parser.epilog = (
        "Every other setting is a flag too: --gateway.keys=required; `rondo config` lists them. An admin's key is "
        "written to RONDO_HOME/admin-key when the store is created; `rondo keys` makes more."
    )
    command = read_command_line(argv)
    given = parser.parse_args(command.rest)
    config = command.config.tree.gateway
    updates = {"host": given.host, "port": given.port, "engines": given.engines or None}
    config = config.model_validate(
        config.model_dump() | {name: value for name, value in updates.items() if value is not None}
    )
    from rondo.gateway.serve import admin_key_file, run_gateway
    from rondo.web.exposure import listen
    from rondo.web.run import url_of

    listener = listen(config)
    url = url_of(listener)

    def on_start() -> None:
        log.info("gateway is listening", extra={"url": url, "engines": config.engines})
        print(f"\n  {url}   admin key: {admin_key_file()}\n", flush=True)

    try:
        run_gateway(config, listener, on_start)
    finally:
        listener.close()
    return 0
