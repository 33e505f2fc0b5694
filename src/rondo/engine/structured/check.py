"""A process that tries grammars out, so that one that takes too long, or too much memory, ends it and not the server.

A line of JSON comes in, one goes out. It uses neither torch nor the engine.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import Any

MOST_BYTES = 4 << 30
Task = dict[str, Any]


def main() -> None:
    """Ends with its parent, who has the other end of the pipe, or by a signal once a grammar has taken too long."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    import llguidance  # noqa: F401  (before the first task's time runs)

    for line in sys.stdin:
        task = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, task["seconds"])
        answer = try_out(task)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(answer), flush=True)


def try_out(task: Task) -> dict[str, str]:
    """{"grammar": what the engine compiles}, or {"error": why not}."""
    from llguidance import LLMatcher

    try:
        grammar = converted(task)
    except Exception as error:  # of whatever kind: it is about what the client sent
        return {"error": first_line(f"{type(error).__name__}: {error}")}
    refused = LLMatcher.validate_grammar(grammar)
    return {"error": first_line(refused)} if refused else {"grammar": grammar}


def first_line(message: str) -> str:
    return " ".join(message.strip().partition("\n<")[0].split())[:300]


def converted(task: Task) -> str:
    from llguidance import LLMatcher, grammar_from

    kind, source = task["kind"], task["source"]
    if kind in ("json", "json_object"):
        return LLMatcher.grammar_from_json_schema(source, overrides=task["options"])
    if kind == "choice":
        # One terminal: as alternatives of a rule, thousands of them would be walked through at each token.
        texts = " | ".join(json.dumps(text) for text in json.loads(source))
        return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {texts}")
    if kind == "structural_tag":
        return LLMatcher.grammar_from_lark(tagged(json.loads(source)))
    return grammar_from(kind, source)


def tagged(tag: dict[str, Any]) -> str:
    """vLLM's {"structures": [{"begin", "schema", "end"}], "triggers": [...]} as a grammar of free text with calls."""
    from llguidance import StructTag

    triggers = tag["triggers"]
    tags = []
    for structure in tag["structures"]:
        begin = structure["begin"]
        trigger = next((each for each in triggers if begin.startswith(each)), None)
        if trigger is None:
            raise ValueError(f"no trigger begins {begin!r}")
        schema = structure["schema"]
        tags.append(StructTag(trigger=trigger, begin=begin, grammar=schema, end=structure["end"]))
    return StructTag.to_grammar(tags, assume_special=False)


if __name__ == "__main__":
    main()
