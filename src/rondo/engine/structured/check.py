"""Process that validates grammars, so that a grammar that exceeds the time or memory limit ends this process, not the
server.

It reads and writes one line of JSON per grammar, and imports neither torch nor the engine.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import Any

MOST_BYTES = 4 << 30
OPTIONS = '%llguidance {"no_forcing": true}\nstart: ""'
"""Disables forced tokens: where the grammar allows a single text, every tokenization of it is allowed, and the model
chooses."""
Task = dict[str, Any]


def main() -> None:
    """Ends with its parent, which holds the other end of the pipe, or by a signal if a grammar exceeds
    its time limit."""
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
    """Returns {"grammar": llguidance's form of the grammar}, or {"error": the reason}."""
    from llguidance import LLMatcher

    try:
        grammar = converted(task)
    except ValueError as error:
        return {"error": first_line(str(error))}
    except RecursionError:
        return {"error": "it is nested too deeply"}
    except MemoryError:
        return {"error": "it needs too much memory"}
    except Exception:  # any error is caused by the client's input
        return {"error": f"it is not of the form that {task['kind']} takes"}
    refused = LLMatcher.validate_grammar(grammar)
    return {"error": first_line(refused)} if refused else {"grammar": grammar}


def first_line(message: str) -> str:
    return " ".join(message.strip().partition("\n<")[0].split())[:300]


def converted(task: Task) -> str:
    """Appends the options as another grammar of the list: the answer obeys the first one, and options apply to all."""
    grammar = in_one_of_its_forms(task)
    form = json.loads(grammar) if grammar.startswith("{") else {"grammars": [{"lark_grammar": grammar}]}
    form["grammars"].append({"name": "options", "lark_grammar": OPTIONS})
    return json.dumps(form)


def in_one_of_its_forms(task: Task) -> str:
    from llguidance import LLMatcher, grammar_from

    kind, source = task["kind"], task["source"]
    if kind in ("json", "json_object"):
        return LLMatcher.grammar_from_json_schema(source, overrides=task["options"])
    if kind == "choice":
        # One terminal: thousands of alternatives of a rule would be traversed at each token.
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
        trigger = next(each for each in triggers if begin.startswith(each))
        schema = structure["schema"]
        tags.append(StructTag(trigger=trigger, begin=begin, grammar=schema, end=structure["end"]))
    return StructTag.to_grammar(tags, assume_special=False)


if __name__ == "__main__":
    main()
