"""Client of the validation process (`check.py`), which is started on demand and restarted after a
grammar has ended it."""

from __future__ import annotations

import json
import threading

from rondo.base.process import LineWorker, python_call
from rondo.client.structured import StructuredOutputsParams

CHECK_SECONDS = 5.0
"""Time limit for compiling a grammar."""
SPACES = r"[ ]?|\n{1,2}[ \t]{0,20}"
"""Whitespace allowed between JSON tokens. It is bounded, because a small model might not stop."""


class Checker:
    """Validation process of one thread."""

    def __init__(self) -> None:
        self._worker = LineWorker(python_call("rondo.engine.structured.check:main"))
        self._lock = threading.Lock()

    def check(self, params: StructuredOutputsParams) -> str:
        """The grammar in llguidance's form; raises `InvalidRequest` if it is refused."""
        task = {
            "kind": params.kind,
            "source": params.source,
            "options": options_of(params),
            "seconds": CHECK_SECONDS,
        }
        with self._lock:
            answer, _ = self._worker.ask(json.dumps(task).encode() + b"\n")
        if not answer:
            raise params.refusal(f"is too large: it cannot be compiled within {CHECK_SECONDS:.0f} s")
        result = json.loads(answer)
        if "error" in result:
            raise params.refusal(f"cannot be enforced: {result['error']}")
        return str(result["grammar"])

    def close(self) -> None:
        self._worker.close()


def options_of(params: StructuredOutputsParams) -> dict[str, object]:
    options: dict[str, object] = {"lenient": not params.strict}
    if params.whitespace_pattern is not None:
        options["whitespace_pattern"] = params.whitespace_pattern
    elif params.disable_any_whitespace:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = SPACES
    return options
