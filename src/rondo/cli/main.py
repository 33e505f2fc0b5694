"""`rondo VERB ...`: imports the verb's module, runs it, and turns errors into one line and an exit code.

Nothing heavy is imported before the verb is parsed: `rondo --help` must respond at once.
"""

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from rondo.base.errors import RondoError, StorageError
from rondo.base.process import leave
from rondo.cli.options.verbs import ALIASES, GROUPS, unknown_verb
from rondo.cli.view.spinner import spinner
from rondo.jobs import attempt

VERBS: dict[str, tuple[str, str]] = {
    "up": (
        "rondo.cli.service.up",
        "serve models (the demo) behind one URL, with keys and a page",
    ),
    "ps": ("rondo.cli.service.ps", "show the parts that `rondo up` runs"),
    "logs": ("rondo.cli.service.logs", "show or follow the log of a part"),
    "down": ("rondo.cli.service.down", "end everything that `rondo up` started"),
    "chat": ("rondo.cli.chat.chat", "chat with a model in the terminal"),
    "run": ("rondo.cli.chat.run", "answer one prompt and print the answer"),
    "serve": ("rondo.cli.commands.serve", "serve a model over the OpenAI API"),
    "demo": ("rondo.cli.commands.demo", "pretrain, tune and serve a small model on this machine"),
    "train": ("rondo.cli.commands.train", "pretrain or fine-tune a model"),
    "evaluate": ("rondo.cli.commands.evaluate", "measure a model on held-out records and on tasks"),
    "rl": ("rondo.cli.commands.rl", "tune a model with reinforcement learning"),
    "plan": ("rondo.cli.commands.plan", "compute layout, memory and speed of a model on GPUs"),
    "data": ("rondo.cli.commands.data", "tokenize text into shards for training, and inspect them"),
    "job": ("rondo.cli.commands.job", "list, follow, submit, stop and remove jobs, here or of a gateway"),
    "pull": ("rondo.cli.commands.pull", "download a model, adapter or data set of the Hugging Face Hub"),
    "model": ("rondo.cli.commands.model", "make, import, export, quantize, inspect and list models"),
    "registry": (
        "rondo.cli.platform.registry",
        "list, promote, alias and import models that a gateway serves",
    ),
    "gateway": ("rondo.cli.service.gateway", "serve one URL with keys in front of engines"),
    "generate": ("rondo.cli.platform.generate", "answer all prompts of a file through a durable queue"),
    "queue": ("rondo.cli.platform.queue", "list, cancel and retry queued requests"),
    "batch": ("rondo.cli.platform.batch", "create, follow and cancel batches of requests"),
    "file": ("rondo.cli.platform.file", "upload, list, download and delete files of the gateway"),
    "worker": ("rondo.cli.service.worker", "execute queued requests with any OpenAI-compatible engine"),
    "weights": ("rondo.cli.service.weights", "plan, push and serve weights from learners to engines"),
    "keys": ("rondo.cli.service.keys", "create, list and revoke API keys of the gateway, and show usage"),
    "db": ("rondo.cli.service.db", "upgrade, back up, restore and check the store of requests and keys"),
    "bench": ("rondo.cli.commands.bench", "measure a server, or a model without one"),
    "doctor": ("rondo.cli.commands.doctor", "check this machine: devices, compiler, kernels, extras"),
    "config": ("rondo.cli.commands.config", "show and explain every setting and the source of its value"),
    "completion": ("rondo.cli.completion.command", "print the completion script of bash, zsh or fish"),
}
"""Each module has `run(argv: list[str]) -> int` and answers `--help` itself."""

INTERRUPTED = 130
BROKEN_PIPE = 141
BUG = 70


def program() -> NoReturn:
    """The command `rondo`."""
    leave(main())


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = dispatch(arguments)
        sys.stdout.flush()
        return code
    except RondoError as error:
        return _fail(error, error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return _fail(error, BUG)
        _discard_output()
        return _fail(StorageError("No space left to write the output."), StorageError.exit_code)
    except Exception as error:
        return _fail(error, BUG)


def _discard_output() -> None:
    """For an output that takes no more: Python's own flush at exit would fail on it once again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        if len(arguments) > 1 and arguments[0] == "help":
            return dispatch([arguments[1], "--help"])
        print(usage())
        return 0
    if arguments[0].startswith("--help="):
        print(_search(arguments[0].removeprefix("--help=")))
        return 0
    if arguments[0] in ALIASES:
        return dispatch([*ALIASES[arguments[0]], *arguments[1:]])
    if arguments[0] == "rm":
        return dispatch([_owner(arguments[1:]), *arguments])
    verb, rest = arguments[0], arguments[1:]
    if verb in ("--version", "-V", "version"):
        from rondo import __version__

        print(f"rondo {__version__}")
        return 0
    if verb not in VERBS:
        raise unknown_verb("rondo", VERBS, verb)
    with spinner():
        code: int = importlib.import_module(VERBS[verb][0]).run(rest)
    return code


def _owner(names: Sequence[str]) -> str:
    """The verb that removes these: `job`, if the first is one, else `model`."""
    from rondo.jobs.folders import find_job

    first = next((name for name in names if not name.startswith("-")), "")
    try:
        find_job(first)
    except RondoError:
        return "model"
    return "job"


def usage() -> str:
    width = max(map(len, VERBS))
    grouped = {verb for verbs in GROUPS.values() for verb in verbs}
    groups = {**GROUPS, "more": tuple(verb for verb in VERBS if verb not in grouped)}
    blocks = [
        "\n".join([f"{name}:", *(f"  {verb:<{width}}  {VERBS[verb][1]}" for verb in verbs if verb in VERBS)])
        for name, verbs in groups.items()
        if verbs
    ]
    return (
        "usage: rondo VERB [options]\n\n"
        "Pretrain, fine-tune, tune with reinforcement learning and serve language models.\n\n"
        f"{chr(10).join(blocks)}\n\n"
        "  rondo VERB --help    options, essential settings and an example\n"
        "  rondo --help=WORD    search all settings: rondo --help=lr\n"
        "  rondo ls, rondo rm   list models, remove models or jobs; rondo --version\n\n"
        "Settings come from defaults, a TOML file (--config FILE), RONDO_* variables and\n"
        "flags such as --train.lr=3e-4; `rondo config --explain` describes them. Models\n"
        "and jobs are in RONDO_HOME (~/.rondo)."
    )


def _search(topic: str) -> str:
    from rondo.cli.options.reference import search

    return search(topic)


def _fail(error: Exception, code: int) -> int:
    if attempt.VARIABLE in os.environ:
        attempt.report_error(error, code)
    if os.environ.get("RONDO_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    message = " ".join(str(error).split())
    if code == BUG:
        kind = type(error).__name__
        message = f"{kind}: {message} (this is a bug; run again with RONDO_DEBUG=1 for the traceback)"
    print(_wrapped(f"error: {message}") if sys.stderr.isatty() else f"error: {message}", file=sys.stderr)
    return code


def _wrapped(text: str) -> str:
    """The text in lines of the terminal's width. Commands in backticks stay whole, so that they can be copied."""
    import re
    import textwrap

    from rondo.cli.options.help import columns

    whole = re.sub(r"`[^`]{1,70}`", lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        whole, columns(), subsequent_indent="       ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\0", " ")


if __name__ == "__main__":
    sys.exit(main())
