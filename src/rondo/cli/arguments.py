"""argparse for verbs, with errors that look like every other error."""

import argparse
from typing import NoReturn

from rondo.base.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """No abbreviated flags, and a mistake is a `ConfigError` that says where the help is."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[:1].upper()}{message[1:]}. See {self.prog} --help.")
