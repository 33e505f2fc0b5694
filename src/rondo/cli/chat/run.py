"""`rondo run MODEL PROMPT`: one answer on standard output."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rondo.base.errors import ConfigError
from rondo.base.storage.paths import path_of
from rondo.base.telemetry.log import setup
from rondo.cli.chat.chat import FLAGS
from rondo.cli.chat.sampling import add_sampling_flags, sampling_of
from rondo.cli.chat.source import open_speaker
from rondo.cli.chat.terminal import CONTROLS
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.short import read_short

if TYPE_CHECKING:
    from rondo.cli.chat.speaker import Answer

EXAMPLES = (
    'examples: rondo run demo "reverse PLANET" --temperature 0; cat report.txt | rondo run MODEL "Summarize:" -; '
    'rondo run MODEL < prompt.txt; rondo run MODEL "Invent a person" --schema person.json'
)


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo run", "Answer one prompt and print the answer.")
    parser.usage = "rondo run MODEL|URL [PROMPT ...] [flags]"
    parser.add_argument(
        "model", help="a model's name, folder or job, or the URL of an OpenAI-compatible server"
    )
    parser.add_argument(
        "prompt", nargs="*", help="the prompt; - is the piped input, the default without a terminal"
    )
    parser.add_argument("--key", help="API key of the URL (RONDO_API_KEY)")
    parser.add_argument(
        "--model", dest="served", metavar="NAME", help="model of the URL; by default its first one"
    )
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument("--schema", metavar="FILE", help="JSON schema that the answer follows")
    parser.add_argument(
        "--json", action="store_true", help="print answer, tokens and times as one JSON object"
    )
    add_sampling_flags(parser)
    parser.epilog = EXAMPLES
    command = read_short(parser, FLAGS, argv)
    if command is None:
        return 0
    given = parser.parse_args(command.rest)
    if command.config.sources["log.level"].kind == "default":
        setup(command.config.tree.log.format, "warning")
    prompt = read_prompt(given.prompt)
    options = sampling_of(given) | _form(given.schema)
    messages = [{"role": "system", "content": given.system}] if given.system else []
    messages.append({"role": "user", "content": prompt})

    from rondo.cli.chat.speaker import Answer

    answer = Answer()
    with closing(open_speaker(given.model, command.config.tree, given.key, given.served)) as speaker:
        show = _silent if given.json else _print
        code = 0
        try:
            speaker.ask(messages, options, show, answer)
        except KeyboardInterrupt:
            code = INTERRUPTED
        if given.json:
            print(json.dumps(report(answer, speaker.name), ensure_ascii=False))
        elif not answer.text.endswith("\n"):
            print(flush=True)
    return code


INTERRUPTED = 130


def read_prompt(words: list[str]) -> str:
    """The words of the command line, then the piped input if `-` or no word is given."""
    given = " ".join(word for word in words if word != "-")
    wanted = "-" in words or (not given and not sys.stdin.isatty())
    piped = sys.stdin.read().rstrip("\n") if wanted else ""
    prompt = "\n\n".join(part for part in (given, piped) if part)
    if not prompt:
        raise ConfigError('There is no prompt: rondo run MODEL "PROMPT", or pipe it in.', param="prompt")
    return prompt


def report(answer: Answer, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "text": answer.text,
        **({"reasoning": answer.reasoning} if answer.reasoning else {}),
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "logprob": round(sum(token.logprob for token in answer.tokens), 6) if answer.tokens else None,
        "first_token_seconds": round(answer.first_seconds, 6),
        "tokens_per_second": answer.tokens_per_second,
    }


def _form(schema: str | None) -> dict[str, Any]:
    """The request's field for structured output."""
    if schema is None:
        return {}
    file = path_of(schema, "--schema")
    try:
        read = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not JSON ({error})"
        raise ConfigError(f"Cannot read the schema {file}: {reason}.", param="--schema") from error
    shape = {"name": "answer", "schema": read, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": shape}}


def _print(reasoning: str, text: str) -> None:
    print(text.translate(CONTROLS) if sys.stdout.isatty() else text, end="", flush=True)


def _silent(reasoning: str, text: str) -> None: ...
