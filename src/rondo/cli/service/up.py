"""`rondo up [MODEL ...]`: the gateway and engines on this machine, supervised; the demo model if none is named."""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.base.errors import ConfigError
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.scopes import UP
from rondo.cli.options.short import read_settings, spell_out

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from rondo.cli.options.tree import RondoConfig
    from rondo.demo.pipeline import Event
    from rondo.gateway.config import GatewayConfig
    from rondo.supervisor.config import PoolConfig, UpConfig
    from rondo.supervisor.on_demand import OnDemand
    from rondo.supervisor.part import Part
    from rondo.supervisor.parts import PartMaker
    from rondo.supervisor.supervisor import Supervisor

POLL_SECONDS = 0.2
ASK_SECONDS = 2.0


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo up",
        "Serve models behind one URL, with a gateway, API keys and a web page. Without a model: the demo model, which "
        "is made first if there is none (a few minutes, once).",
        UP,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="a model's name, folder or job")
    parser.add_argument(
        "--name", default="demo", help="name of the demo model, and the first part of its jobs' names (demo)"
    )
    parser.add_argument("--engines", type=int, metavar="N", help="engines for each model (1)")
    parser.add_argument("--tensor-parallel", type=int, metavar="K", help="ranks of each engine (1)")
    parser.epilog = (
        "Settings go to every part. `rondo ps` shows the parts, `rondo logs PART -f` follows one, `rondo down` ends "
        "all."
    )
    command = read_settings(parser, argv)
    if command is None:
        return 0
    given = parser.parse_args(command.rest)
    tree = command.config.tree
    _check_not_running()
    port = _check_ports(tree.gateway)
    config = tree.up.model_copy(update={"pools": _pools(tree.up, given)})
    settings = _settings(parser, argv, command.rest)
    return _run(
        config, tree.model_copy(update={"gateway": tree.gateway.model_copy(update={"port": port})}), settings
    )


def _pools(config: UpConfig, given: argparse.Namespace) -> list[PoolConfig]:
    from rondo.supervisor.config import PoolConfig

    shape = {"engines": given.engines, "tensor_parallel": given.tensor_parallel}
    shape = {name: value for name, value in shape.items() if value is not None}
    for name, value in shape.items():
        if value < 1:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is at least 1, not {value}.", param=flag)
    if config.pools and not given.models:
        return [pool.model_copy(update=shape) for pool in config.pools]
    models = given.models or [str(_demo_model(given.name))]
    return [PoolConfig(model=model, **shape) for model in models]


def _run(config: UpConfig, tree: RondoConfig, settings: Sequence[str]) -> int:
    from rondo.supervisor.control import ControlEndpoint
    from rondo.supervisor.parts import PartMaker, new_keys
    from rondo.supervisor.supervisor import Supervisor

    gateway = tree.gateway
    host = "127.0.0.1" if gateway.host in ("0.0.0.0", "::") else gateway.host
    url = f"{'http' if gateway.tls_certificate is None else 'https'}://{host}:{gateway.port}"
    control = ControlEndpoint() if config.on_demand else None
    env = {} if control is None else control.env
    maker = PartMaker(config, gateway.host, gateway.port, url, settings, new_keys(), env)
    parts = maker.parts()
    supervisor = Supervisor(parts, config, url, control, lambda: _on_demand(config, tree, maker, parts[1:]))
    announce = threading.Thread(target=_announce, args=(supervisor, gateway), daemon=True)
    supervisor.run(announce.start)
    failed = [part.name for part in supervisor.parts if part.state == "failed"]
    if len(failed) == len(supervisor.parts):
        print("error: no part could start: see `rondo logs gateway`", flush=True)
    return 1 if failed else 0


def _on_demand(
    config: UpConfig, tree: RondoConfig, maker: PartMaker, engines: Sequence[Part]
) -> OnDemand | None:
    """While the parts start, since reading the catalog takes as long as the gateway's start."""
    from rondo.cli.service.catalog import MachineCatalog, shown_name
    from rondo.supervisor.on_demand import OnDemand

    catalog = MachineCatalog(tree.engine)
    sources = [catalog.source_of(part.model) for part in engines]
    for part, source in zip(engines, sources, strict=True):
        part.model = shown_name(source)
    if not config.on_demand:
        return None
    budget = config.memory or int((catalog.memory or 0) * config.memory_share)
    pinned = list(zip(engines, sources, strict=True))
    return OnDemand(catalog, config, budget, pinned, maker.on_demand, maker.keys)


def _announce(supervisor: Supervisor, gateway: GatewayConfig) -> None:
    """Prints the URL when the gateway answers and each engine is ready or has failed."""
    from rondo.base.storage.home import admin_key_file
    from rondo.cli.platform.remote import admin_key_place

    count = len(supervisor.parts) - 1
    print(f"\n  starting the gateway and {count} engine{'s' * (count != 1)} ...", flush=True)
    while not _ready(supervisor):
        time.sleep(POLL_SECONDS)
    supervisor.named.wait()
    for part in supervisor.parts:
        if part.state == "failed":
            print(f"  {part.name} failed: see `rondo logs {part.name}`", flush=True)
    models = list(dict.fromkeys(part.model for part in supervisor.parts[1:] if part.state != "failed"))
    print(f"\n  {supervisor.url}   models: {', '.join(models) or 'none'}\n", flush=True)
    if models:
        text = f"$(cat {admin_key_file()})" if admin_key_file().is_file() else "KEY"
        key = f' -H "Authorization: Bearer {text}"' if gateway.guarded else ""
        body = json.dumps({"model": models[0], "messages": [{"role": "user", "content": "reverse PLANET"}]})
        call = (
            f"curl {supervisor.url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"
        )
        print(f"  {call}\n", flush=True)
    print(
        f"  admin key: {admin_key_place()}\n  see `rondo ps`, `rondo logs PART -f`, `rondo down`\n",
        flush=True,
    )


def _ready(supervisor: Supervisor) -> bool:
    """Whether the gateway and each engine that has not failed answer."""
    engines = [part for part in supervisor.parts[1:] if part.state != "failed"]
    if supervisor.parts[0].state == "failed":
        return True
    try:
        return bool(_health(supervisor.url)["components"]["engines"]["ready"] >= len(engines))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _health(url: str) -> Any:
    unchecked = ssl._create_unverified_context() if url.startswith("https:") else None  # of this very process
    try:
        with urllib.request.urlopen(url + "/v1/health", timeout=ASK_SECONDS, context=unchecked) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        return json.load(error)


def _settings(parser: VerbParser, argv: Sequence[str], rest: Sequence[str]) -> list[str]:
    """Flags of `argv` that are settings, for the parts."""
    left = list(rest)
    settings = []
    for token in spell_out(UP, argv, parser.options()).long:
        if token in left:
            left.remove(token)
        else:
            settings.append(token)
    return settings


def _check_not_running() -> None:
    from rondo.base.errors import Conflict
    from rondo.supervisor.state import running_state
    from rondo.supervisor.supervisor import already_running

    if running_state() is not None:
        raise Conflict(already_running())


def _check_ports(gateway: GatewayConfig) -> int:
    """The gateway's port, free: minutes of making a model should not end in a port that is in use."""
    from rondo.web.exposure import listen

    with listen(gateway) as listener:
        port: int = listener.getsockname()[1]
        return port


def _demo_model(name: str) -> Path:
    """The view opens with the first event: where the model is there already, there is nothing to see. After Ctrl-C the
    command ends, and prints how to resume.
    """
    from rondo.cli.view.demo_view import demo_view
    from rondo.cli.view.steps import command_line, say_aborted, say_paused
    from rondo.demo.pipeline import ensure_demo_model
    from rondo.parallel.ranks.crew import Aborted, Paused

    show: Callable[[Event], None] | None = None
    try:
        with ExitStack() as stack:

            def on_event(event: Event) -> None:
                nonlocal show
                if show is None:
                    show = stack.enter_context(demo_view())
                show(event)

            return ensure_demo_model(on_event, name, command_line())
    except Paused as pause:
        raise SystemExit(say_paused(pause)) from None
    except Aborted:
        raise SystemExit(say_aborted()) from None
