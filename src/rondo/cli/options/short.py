"""Short flags of single verbs, such as `--port 80`: other spellings of settings, here `--server.port=80`."""

from __future__ import annotations

import difflib
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from rondo.base.errors import ConfigError
from rondo.base.settings.config import SettingSource
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.flags import ALIASES, AS_IT_IS, FLAGS, REFUSED, Flag, check_vllm, refuse
from rondo.cli.options.help import help_topic
from rondo.cli.options.scopes import SERVE, SettingScope, flags_scope
from rondo.cli.options.tree import CommandLine, read_command_line


def read_short(parser: VerbParser, flags: Sequence[str], argv: list[str]) -> CommandLine | None:
    """`read_settings` for a verb that takes these flags of `FLAGS`."""
    parser.scope = SERVE if len(flags) == len(FLAGS) else flags_scope(flags)
    return read_settings(parser, argv)


def read_settings(parser: VerbParser, argv: list[str]) -> CommandLine | None:
    """`read_command_line` for a verb whose parser has a scope. None after printing help."""
    scope = parser.scope
    assert scope is not None
    if (topic := help_topic(argv)) is not None:
        parser.show_help(topic)
        return None
    spelled = spell_out(scope, argv, parser.options())
    try:
        command = read_command_line(spelled.long)
    except ConfigError as error:
        # An error names the flag that was written, not the one it stands for.
        message = error.message
        for path, flag in sorted(spelled.written.items(), reverse=True):  # the longer of two paths first
            message = message.replace(f"--{path}", flag)
        raise ConfigError(message, param=error.param, code=error.code) from None
    if scope.vllm and command.config.tree.engine.backend == "vllm":
        check_vllm(argv)
    sources = dict(command.config.sources)
    for path, flag in spelled.written.items():
        if sources[path] == SettingSource("flag", f"--{path}"):
            sources[path] = SettingSource("flag", flag)
    return replace(command, config=replace(command.config, sources=sources))


@dataclass
class Spelled:
    """The command line in settings' own names, and which setting each short flag stands for."""

    long: list[str] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, flag: Flag, values: Sequence[str]) -> None:
        for path, value in flag.read(values).items():
            self.written[path] = name
            self.long.append(f"--{path}={value}")

    @property
    def has_argument(self) -> bool:
        """Whether the verb's own argument is already present, so that no other can follow."""
        return bool(self.long) and not self.long[0].startswith("-")


def spell_out(scope: SettingScope, argv: Sequence[str], own: Container[str] = ()) -> Spelled:
    """Replaces short flags by settings. Flags in `own` are the parser's."""
    spelled, left = Spelled(), list(argv)
    given: dict[str, list[str]] = {}
    while left:
        token = left.pop(0)
        if token == "--":
            spelled.long += [token, *left]
            break
        name, equals, value = token.partition("=")
        name = ALIASES.get(
            name, name.replace("_", "-") if name.startswith("--") and "." not in name else name
        )
        if name in own:
            spelled.long.append(token)
        elif name in scope.flags:
            flag = scope.flags[name]
            if equals and flag.alone == "false":
                raise ConfigError(f"The flag {name} stands alone, without ={value}.", param=name)
            values = given.setdefault(name, [])
            values += [value] if equals else _values(name, flag, left, spelled.has_argument)
            spelled.set(name, flag, values if flag.several else values[-1:])
        elif name.startswith("--") and (path := scope.path_of(name)) is not None:
            spelled.long.append(f"--{path}{equals}{value}")
            spelled.written[path] = name
        elif scope.vllm and (name in AS_IT_IS or name in REFUSED):
            follows = left and not left[0].startswith("-") and AS_IT_IS.get(name) != frozenset()
            refuse(name, [value] if equals else [left.pop(0)] if follows else [])
        else:
            if scope.vllm and name.startswith("--") and "." not in name and name != "--config":
                raise _unknown(name)
            spelled.long.append(token)
            spelled.written.pop(name.removeprefix("--").replace("-", "_"), None)
            if name == "--config" and not equals and left:
                spelled.long.append(left.pop(0))
    return spelled


def _unknown(name: str) -> ConfigError:
    close = difflib.get_close_matches(name, [*FLAGS, *AS_IT_IS, *REFUSED], n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return ConfigError(f"There is no flag {name}.{hint} See rondo serve --help.", param=name)


def _values(name: str, flag: Flag, left: list[str], last: bool) -> list[str]:
    """Values of the flag. A flag with several values takes all of them if nothing else can follow."""
    if flag.alone is not None:
        return [flag.alone]
    if not left or left[0].startswith("--"):
        raise ConfigError(f"The flag {name} needs a value: {name}=...")
    values = [left.pop(0)]
    while flag.several and last and left and not left[0].startswith("-"):
        values.append(left.pop(0))
    return values
