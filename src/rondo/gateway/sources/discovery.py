"""Engines behind a Kubernetes service or a DNS name: `gateway.discovery`."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from rondo.base.errors import ConfigError, Conflict, NotFound
from rondo.base.telemetry.log import get_logger
from rondo.gateway.config import GatewayConfig
from rondo.gateway.fleet import Fleet
from rondo.gateway.sources.kubernetes import FAILED, KubernetesService, ServiceName

log = get_logger("rondo.gateway.discovery")

LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
PORT = re.compile(r"[0-9]{1,5}|[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
FORMS = "kubernetes://NAMESPACE/SERVICE[:PORT] or dns://NAME:PORT"


@dataclass(frozen=True)
class DnsName:
    host: str
    port: int


def read_source(text: str) -> ServiceName | DnsName:
    """A value of `gateway.discovery`."""
    parts = urlsplit(text)
    if parts.query or parts.fragment or parts.username is not None:
        pass
    elif parts.scheme == "kubernetes":
        service, _, port = parts.path.removeprefix("/").partition(":")
        good = LABEL.fullmatch(parts.netloc) and LABEL.fullmatch(service)
        if good and (not port or PORT.fullmatch(port)):
            return ServiceName(parts.netloc, service, port or None)
    elif parts.scheme == "dns":
        with suppress(ValueError):
            if parts.hostname and parts.port and not parts.path:
                return DnsName(parts.hostname, parts.port)
    raise ConfigError(f"{text!r} is not a source of engines: write it as {FORMS}.", param="gateway.discovery")


class Discovery:
    """Follows all sources of the configuration. Created within the event loop that runs it."""

    def __init__(self, config: GatewayConfig, fleet: Fleet) -> None:
        self.config, self.fleet = config, fleet
        sources = [read_source(text) for text in config.discovery]
        self._tasks = [asyncio.create_task(self._follow(source)) for source in sources]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, source: ServiceName | DnsName) -> None:
        known: frozenset[str] = frozenset()
        pause, failing = FIRST_PAUSE, False
        while True:
            try:
                async with aclosing(self._addresses(source)) as changes:
                    async for found in changes:
                        known = self._register(known, found)
                        pause, failing = FIRST_PAUSE, False
                await asyncio.sleep(FIRST_PAUSE)  # the watch expired
            except FAILED as error:
                if not failing:
                    log.warning(f"discovery of {source} failed, known engines stay: {error}")
                failing = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _addresses(self, source: ServiceName | DnsName) -> AsyncGenerator[frozenset[str], None]:
        if isinstance(source, DnsName):
            return _resolved(source, self.config.discovery_seconds)
        return KubernetesService(source, self.config).addresses()

    def _register(self, known: Iterable[str], found: frozenset[str]) -> frozenset[str]:
        """URLs of this source that the fleet has; engines of other sources are left alone."""
        kept = set(known) & found
        for url in set(known) - found:
            log.info("engine left its service", extra={"engine": url})
            with suppress(NotFound):
                self.fleet.remove(urlsplit(url).netloc)
        for url in found - kept:
            with suppress(Conflict):
                self.fleet.add(url)
                kept.add(url)
                log.info("engine joined its service", extra={"engine": url})
        return frozenset(kept)


async def _resolved(name: DnsName, seconds: float) -> AsyncGenerator[frozenset[str], None]:
    """Addresses of a name, such as a headless service, each time that they change."""
    loop, last = asyncio.get_running_loop(), None
    while True:
        async with asyncio.timeout(max(seconds, 5.0)):
            found = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
        urls = frozenset(url_of_address(str(address[0]), name.port) for *_, address in found)
        if urls != last:
            yield urls
        last = urls
        await asyncio.sleep(seconds)


def url_of_address(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
