"""`rondo chat [MODEL|URL]`: a conversation in the terminal."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from rondo.base.errors import RondoError
from rondo.base.telemetry.log import setup
from rondo.cli.chat.sampling import add_sampling_flags, sampling_of
from rondo.cli.chat.source import is_url, open_speaker
from rondo.cli.chat.speaker import Speaker
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.short import read_short

if TYPE_CHECKING:
    from rondo.cli.chat.session import Session
    from rondo.cli.chat.terminal import Terminal

FLAGS = (
    "--chat-template",
    "--reasoning-parser",
    "--dtype",
    "--max-model-len",
    "--device",
    "--threads",
    "--engine",
)
EXAMPLES = (
    "examples: rondo chat; rondo chat demo --temperature 0; rondo chat http://127.0.0.1:8000; "
    "rondo chat https://api.example.com/v1 --key KEY --model NAME. Inside, /help lists the commands."
)


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo chat", "Chat with a model in the terminal.")
    parser.usage = "rondo chat [MODEL|URL] [flags]"
    parser.add_argument(
        "model",
        nargs="?",
        help="a model's name, folder or job, loaded in this process, or the URL of an OpenAI-compatible server; "
        "by default the gateway on port 8000 or the server on port 8001, else the newest model",
    )
    parser.add_argument("--key", help="API key of the URL (RONDO_API_KEY)")
    parser.add_argument(
        "--model", dest="served", metavar="NAME", help="model of the URL; by default its first one"
    )
    parser.add_argument("--system", default="", metavar="TEXT", help="system prompt")
    parser.add_argument(
        "--single-turn",
        action="store_true",
        help="send each input without the earlier ones, as the demo model needs",
    )
    add_sampling_flags(parser)
    parser.epilog = EXAMPLES
    command = read_short(parser, FLAGS, argv)
    if command is None:
        return 0
    given = parser.parse_args(command.rest)
    tree = command.config.tree
    if command.config.sources["log.level"].kind == "default":
        setup(tree.log.format, "warning")

    from rondo.cli.chat.session import NAMES, Session
    from rondo.cli.chat.terminal import Terminal

    terminal = Terminal(NAMES)
    first = open_speaker(given.model, tree, given.key, given.served)

    def load(name: str) -> Speaker:
        """A model of the same server, if that has it; else one of this machine."""
        if not first.local and not is_url(name) and name in first.client.models():
            return first.sibling(name)
        return open_speaker(name, tree, given.key)

    with closing(Session(first, load, terminal, sampling_of(given), not given.single_turn)) as session:
        session.system = given.system
        terminal.note(f"model: {first.name} {first.where}")
        terminal.note("/help lists the commands, Ctrl-D leaves.")
        with terminal.editing():
            _converse(session, terminal)
    return 0


def _converse(session: Session, terminal: Terminal) -> None:
    while True:
        try:
            text = terminal.read()
        except KeyboardInterrupt:
            print()
            terminal.note("Ctrl-D or /exit leaves.")
            continue
        if text is None:
            return
        try:
            if not session.handle(text):
                return
        except KeyboardInterrupt:
            print()
        except RondoError as error:
            terminal.error(error.message)
