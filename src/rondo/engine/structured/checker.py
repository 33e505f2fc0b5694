"""The process of `check.py`, started when it is needed and again after a grammar has ended it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

from rondo.client.structured import StructuredOutputsParams

CHECK_SECONDS = 5.0
"""A grammar that takes longer is refused."""
MAIN = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from rondo.engine.structured.check import main
main()"""
SPACES = r"[ ]?|\n{1,2}[ \t]{0,20}"
"""What may stand between JSON's tokens. It has an end, which a small model might not find by itself."""


class Checker:
    """Of one thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def check(self, params: StructuredOutputsParams) -> str:
        """The grammar in llguidance's own form, or an `InvalidRequest`."""
        task = {
            "kind": params.kind,
            "source": params.source,
            "options": options_of(params),
            "seconds": CHECK_SECONDS,
        }
        with self._lock:
            answer = self._ask(json.dumps(task) + "\n")
        if not answer:
            raise params.refusal(f"is too large: it cannot be compiled within {CHECK_SECONDS:.0f} s")
        result = json.loads(answer)
        if "error" in result:
            raise params.refusal(f"cannot be enforced: {result['error']}")
        return str(result["grammar"])

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, line: str) -> str:
        """The answer; nothing if the process has ended."""
        if self._process is None:
            self._process = subprocess.Popen(
                # It finds the modules that this process finds.
                [sys.executable, "-c", MAIN, json.dumps(list(map(str, sys.path)))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.close()
        return answer


def options_of(params: StructuredOutputsParams) -> dict[str, object]:
    options: dict[str, object] = {"lenient": not params.strict}
    if params.whitespace_pattern is not None:
        options["whitespace_pattern"] = params.whitespace_pattern
    elif params.disable_any_whitespace:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = SPACES
    return options
