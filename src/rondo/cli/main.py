"""`rondo VERB ...`: imports the verb's module, runs it, and turns errors into one line and an exit code.

Nothing heavy is imported before the verb is parsed: `rondo --help` must respond at once.
"""

import errno
import importlib
import os
import sys
from collections.abc import Sequence

from rondo.base.errors import RondoError, StorageError
from rondo.cli.options.verbs import unknown_verb

VERBS: dict[str, tuple[str, str]] = {
    "up": (
        "rondo.cli.service.up",
        "serve models behind one URL, with keys and a page; the demo model by default",
    ),
    "ps": ("rondo.cli.service.ps", "show the parts that `rondo up` runs"),
    "logs": ("rondo.cli.service.logs", "show or follow the log of a part"),
    "down": ("rondo.cli.service.down", "end everything that `rondo up` started"),
    "serve": ("rondo.cli.commands.serve", "serve a model over the OpenAI API"),
    "demo": ("rondo.cli.commands.demo", "pretrain, RL-tune and try a small model on this machine"),
    "train": ("rondo.cli.commands.train", "pretrain or fine-tune a model"),
    "evaluate": ("rondo.cli.commands.evaluate", "measure a model on held-out records and on tasks"),
    "rl": ("rondo.cli.commands.rl", "tune a model with reinforcement learning"),
    "plan": ("rondo.cli.commands.plan", "say how to lay a model out over GPUs, and what that comes to"),
    "data": ("rondo.cli.commands.data", "tokenize text into shards for training, and look into them"),
    "job": ("rondo.cli.commands.job", "list the training jobs of this machine and show one"),
    "pull": ("rondo.cli.commands.pull", "download a model or data set of the Hugging Face Hub by name"),
    "model": ("rondo.cli.commands.model", "make, import, export, quantize, inspect and list models"),
    "gateway": ("rondo.cli.service.gateway", "serve one URL with keys in front of engines"),
    "keys": ("rondo.cli.service.keys", "create, list and revoke API keys of the gateway, and show usage"),
    "db": ("rondo.cli.service.db", "upgrade, back up, restore and check the store of requests and keys"),
    "bench": ("rondo.cli.commands.bench", "measure a server, or a model without one"),
    "doctor": (
        "rondo.cli.commands.doctor",
        "say what computes on this machine, and how near it comes to its limits",
    ),
    "config": ("rondo.cli.commands.config", "show every setting and where its value comes from"),
}
"""Each module has `run(argv: list[str]) -> int` and answers `--help` itself."""

INTERRUPTED = 130
BROKEN_PIPE = 141
BUG = 70


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
    verb, rest = arguments[0], arguments[1:]
    if verb in ("--version", "-V", "version"):
        from rondo import __version__

        print(f"rondo {__version__}")
        return 0
    if verb not in VERBS:
        raise unknown_verb("rondo", VERBS, verb)
    code: int = importlib.import_module(VERBS[verb][0]).run(rest)
    return code


def usage() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in VERBS.items())
    return (
        "usage: rondo VERB [options]\n\n"
        "Pretrain, fine-tune, tune with reinforcement learning and serve language models.\n\n"
        f"{verbs}\n\n"
        "  rondo VERB --help   what a verb takes\n"
        "  rondo --version     the version\n\n"
        "Settings come from defaults, a TOML file (--config FILE), RONDO_* variables and flags such as\n"
        "--train.lr=3e-4; `rondo config` shows them all. Models and jobs are kept in RONDO_HOME (~/.rondo)."
    )


def _fail(error: Exception, code: int) -> int:
    if os.environ.get("RONDO_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    message = " ".join(str(error).split())
    if code == BUG:
        kind = type(error).__name__
        message = f"{kind}: {message} (this is a bug; run again with RONDO_DEBUG=1 for the traceback)"
    print(f"error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
