"""Short flags of single verbs, such as `--port 80`: other spellings of settings, here `--server.port=80`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from rondo.base.config import Source
from rondo.base.errors import ConfigError
from rondo.cli.tree import CommandLine, read_command_line

SHORT: dict[str, tuple[str, str]] = {
    "--host": ("server.host", "address to listen on (127.0.0.1)"),
    "--port": ("server.port", "port to listen on (8000)"),
    "--api-key": ("server.api_key", "what clients must send as Bearer token"),
    "--served-model-name": ("server.served_model_name", "the name clients ask for"),
    "--tool-call-parser": (
        "server.tool_call_parser",
        "how the model writes tool calls (as its template does)",
    ),
    "--reasoning-parser": ("server.reasoning_parser", "how it writes its reasoning (as its template does)"),
    "--enable-auto-tool-choice": ("server.auto_tool_choice", "let the model choose to call tools (it may)"),
    "--max-model-len": ("engine.max_model_len", "longest prompt plus answer, in tokens"),
    "--max-num-seqs": ("engine.max_num_seqs", "most requests computed together"),
    "--max-num-batched-tokens": ("engine.max_step_tokens", "most tokens computed in one step"),
    "--dtype": ("engine.dtype", "auto, float32, bfloat16 or float16"),
    "--kv-cache-dtype": ("engine.kv_dtype", "auto, float32, bfloat16, float16, int8 or fp8"),
    "--device": ("engine.device", "auto, cpu, cuda, ..."),
    "--threads": ("engine.threads", "CPU threads of one step"),
    "--seed": ("engine.seed", "where requests without a seed get theirs from"),
}
"""vLLM's names for the settings people set most: what each is called in the tree, and what it is."""

SWITCHES = frozenset(["--enable-auto-tool-choice"])
"""Those that are written without a value."""


def read_short(parser: argparse.ArgumentParser, flags: Sequence[str], argv: list[str]) -> CommandLine | None:
    """`read_command_line` for a verb that also takes `flags`. None when help was asked for, and given."""
    for flag in flags:
        path, text = SHORT[flag]
        if flag in SWITCHES:
            parser.add_argument(flag, action="store_true", help=text)
        else:
            parser.add_argument(flag, metavar=path.rpartition(".")[2].upper(), help=text)
    if any(flag in argv for flag in ("-h", "--help")):
        parser.print_help()
        return None
    written, long = spell_out(flags, argv)
    try:
        command = read_command_line(long)
    except ConfigError as error:
        # An error names the flag that was written, not the one it stands for.
        message = error.message
        for path, flag in written.items():
            message = message.replace(f"--{path}", flag)
        raise ConfigError(message, param=error.param, code=error.code) from None
    sources = dict(command.config.sources)
    for path, flag in written.items():
        if sources[path] == Source("flag", f"--{path}"):
            sources[path] = Source("flag", flag)
    return replace(command, config=replace(command.config, sources=sources))


def spell_out(flags: Sequence[str], argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """(setting -> the short flag that sets it, the command line without short flags)."""
    written: dict[str, str] = {}
    long: list[str] = []
    left = list(argv)
    while left:
        token = left.pop(0)
        if token == "--":
            return written, [*long, token, *left]
        name, equals, value = token.partition("=")
        if name not in flags:
            long.append(token)
            written.pop(name.removeprefix("--").replace("-", "_"), None)
            if name == "--config" and not equals and left:
                long.append(left.pop(0))
            continue
        if not equals and name in SWITCHES:
            value = "true"
        elif not equals:
            if not left or left[0].startswith("--"):
                raise ConfigError(f"The flag {name} needs a value: {name}=...")
            value = left.pop(0)
        path = SHORT[name][0]
        written[path] = name
        long.append(f"--{path}={value}")
    return written, long
