"""The gateway that commands call: address and key."""

from __future__ import annotations

import os
from argparse import SUPPRESS
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rondo.base.storage.home import admin_key_file
from rondo.cli.options.arguments import VerbParser

if TYPE_CHECKING:
    from rondo.client.http import Client


def add_address(parser: VerbParser, shown: bool = True) -> None:
    url = "gateway (RONDO_BASE_URL, else http://127.0.0.1:8000)"
    key = "API key (RONDO_API_KEY, else RONDO_HOME/admin-key for this machine)"
    parser.add_argument("--url", metavar="URL", help=url if shown else SUPPRESS)
    parser.add_argument("--key", metavar="KEY", help=key if shown else SUPPRESS)


def admin_key_place() -> str:
    """Place of an admin's key, for messages."""
    file = admin_key_file()
    return str(file) if file.is_file() else "none here: `rondo keys create NAME --role admin` prints one"


def gateway_client(url: str | None, key: str | None) -> Client:
    from rondo.client.http import Client
    from rondo.web.config import is_loopback

    client = Client(url, key)
    if key is None and "RONDO_API_KEY" not in os.environ:
        file = admin_key_file()
        if is_loopback(urlsplit(client.base_url).hostname or "") and file.is_file():
            client.close()
            client = Client(url, file.read_text().strip())
    return client
