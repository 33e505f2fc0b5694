"""`rondo rl rollouts`: prompts, answers and rewards of a job's policy."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from rondo.cli.options.arguments import VerbParser
from rondo.cli.view.table import aligned
from rondo.jobs.folders import find_job

if TYPE_CHECKING:
    from rondo.rl.record.query import RolloutSummary, Texts
    from rondo.rl.record.reader import Page, StoredSegment, Whole

LIMIT = 20
NARROWEST = 20
"""Characters of an answer, however narrow the terminal is."""
OPTIONAL = ("problem", "ended", "tokens")
"""Columns that a narrow terminal leaves out, in this order; --show and --json have them."""
EPILOG = """Conditions are NAME SIGN VALUE, and all must hold: --where 'reward>0.5' --where 'text~sorry'. Names are
step, sample, reward, advantage, prompt_tokens, tokens, sampled, version, id, problem, outcome, finish_reason, the texts
prompt, text and detail, and the parts of the reward; signs > >= < <= = != and ~ (contains); none is a value too."""


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo rl rollouts", "The rollouts that a job has stored, those of the last step first."
    )
    parser.add_argument(
        "job", metavar="JOB", help="a job's name, or the first 6 or more characters of its hash"
    )
    parser.add_argument("--step", type=int, metavar="N", help="of this step alone")
    parser.add_argument("--sort", default="step", metavar="NAME", help="by reward, a part of it, tokens, ...")
    parser.add_argument("--order", choices=("desc", "asc"), default="desc", help="largest first, or least")
    parser.add_argument("--where", action="append", default=[], metavar="CONDITION", help="see below")
    parser.add_argument(
        "--limit", type=_limit, default=LIMIT, metavar="N", help=f"the most to list ({LIMIT})"
    )
    parser.add_argument("--after", metavar="ID", help="list rollouts after this one")
    parser.add_argument("--show", metavar="ID", help="all of one rollout")
    parser.add_argument("--tokens", action="store_true", help="with --show, a line a token")
    parser.add_argument("--json", action="store_true", help="print the API's JSON")
    parser.epilog = EPILOG
    given = parser.parse_args(argv)
    folder = find_job(given.job)

    from rondo.rl.record import rollout_json
    from rondo.rl.record.query import Condition
    from rondo.rl.record.reader import RolloutReader
    from rondo.rl.record.store import FOLDER

    stored = RolloutReader(folder / FOLDER)
    if given.show is not None:
        whole = stored.show(given.show)
        print(json.dumps(rollout_json.whole(whole)) if given.json else _sheet(whole, given.tokens))
        return 0
    where = [Condition.of(text) for text in given.where]
    if given.step is not None:
        where.append(Condition("step", "=", str(given.step)))
    page = stored.find(where, sort=given.sort, order=given.order, limit=given.limit, after=given.after)
    texts = stored.texts(page.entries)
    if given.json:
        print(json.dumps(rollout_json.page(page, texts)))
    elif not stored.steps():
        print("The job has stored no rollouts. rl.rollouts.keep says of how many steps they stay.")
    else:
        print(_list(page, texts, shutil.get_terminal_size().columns))
    return 0


def _limit(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it must be a number of at least 1, not {text!r}")
    return int(text)


def _list(page: Page, texts: dict[str, Texts], width: int) -> str:
    if not page.entries:
        return "No rollout is like that."
    parts = list(dict.fromkeys(name for entry in page.entries for name in entry.parts))
    rows = [["id", "problem", "reward", "advantage", "tokens", "ended", *parts]]
    rows += [_row(entry, parts) for entry in page.entries]
    if sys.stdout.isatty():
        rows = _narrowed(rows, width - NARROWEST - 2)
    lines = aligned(rows)
    room = max(NARROWEST, width - max(map(len, lines)) - 2)
    longest = max(map(len, lines))
    said = ["answer", *(_one_line(texts[e.id].text, room) if e.id in texts else "" for e in page.entries)]
    shown = [f"{line:<{longest}}  {text}".rstrip() for line, text in zip(lines, said, strict=True)]
    if page.more:
        shown.append(f"There are more: --after {page.entries[-1].id}, or a larger --limit.")
    return "\n".join(shown)


def _narrowed(rows: list[list[str]], width: int) -> list[list[str]]:
    """The table without the columns of OPTIONAL, as far as it is wider than the terminal."""
    for name in OPTIONAL:
        if max(map(len, aligned(rows))) <= width:
            break
        at = rows[0].index(name)
        rows = [row[:at] + row[at + 1 :] for row in rows]
    return rows


def _row(entry: RolloutSummary, parts: Sequence[str]) -> list[str]:
    return [
        entry.id,
        entry.problem,
        _number(entry.reward) if entry.outcome == "ok" else entry.outcome or "-",
        _number(entry.advantage),
        str(entry.tokens),
        entry.finish_reason,
        *(_number(entry.parts.get(name)) for name in parts),
    ]


def _sheet(whole: Whole, tokens: bool) -> str:
    entry, texts = whole.entry, whole.texts
    versions = " to ".join(map(str, dict.fromkeys(entry.versions))) or "-"
    facts = [
        ("id", f"{entry.id}, of step {entry.step}, problem {entry.problem}"),
        ("reward", _number(entry.reward) if entry.outcome == "ok" else f"none: {entry.outcome}"),
        *((f"  {name}", _number(value)) for name, value in entry.parts.items()),
        ("advantage", _number(entry.advantage)),
        ("ended", entry.finish_reason),
        ("tokens", f"{entry.tokens} after a prompt of {entry.prompt_tokens}; {entry.sampled} were sampled"),
        ("weights", f"version {versions}"),
    ]
    lines = [line for row in aligned([list(fact) for fact in facts]) for line in [row]]
    if texts.detail:
        lines.append(f"grader: {texts.detail}")
    for message in texts.messages:
        lines += ["", f"[{message.get('role', '?')}]", str(message.get("content") or "")]
    lines += ["", "[answer]", texts.text]
    if tokens:
        for number, piece in enumerate(whole.pieces, 1):
            title = "[tokens]" if len(whole.pieces) == 1 else f"[tokens of piece {number}]"
            lines += ["", title, *aligned(_tokens(piece))]
    return "\n".join(lines)


def _tokens(piece: StoredSegment) -> list[list[str]]:
    """Tokens of a tool or an environment have neither log-probability nor advantage."""
    rows = [["token", "version", "logprob", "advantage"]]
    for i, token in enumerate(piece.token_ids):
        chosen = piece.sampled[i]
        advantage = piece.advantages[i] if piece.advantages and chosen else None
        rows.append(
            [
                str(token),
                str(piece.versions[i]),
                _number(piece.logprobs[i] if chosen else None),
                _number(advantage),
            ]
        )
    return rows


def _one_line(text: str, room: int) -> str:
    """Escapes characters that would move the cursor or the columns of a table."""
    shown = "".join(islice((c if c.isprintable() else repr(c)[1:-1] for c in text), room + 1))
    return shown if len(shown) <= room else shown[: room - 3] + "..."


def _number(value: float | None) -> str:
    """Adding 0.0 turns -0.0, which means nothing to a reader, into 0."""
    return "-" if value is None else f"{value + 0.0:.4g}"
