"""CPU time (user and system) of commands that must answer at once, each in a new process.

The least of several runs counts: these are costs of imports, and other processes only add to them. `--imports` lists
the most expensive imports of each command.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Report, arguments, say
from small_model import write_small_model

COMMANDS = {
    "rondo --help": 0.15,
    "rondo model list": 0.25,
    "rondo plan llama-3-8b": 0.5,
    "rondo config --explain": 0.7,
    "rondo train sft --help": 0.7,
    "rondo completion --words train sft --l": 0.7,
    "rondo train sft --model served --data bad.jsonl": 1.0,
}
"""Command and target in seconds."""


def cpu_seconds(command: list[str], env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def slow_imports(command: list[str], env: dict[str, str], most: int = 5) -> list[str]:
    timed = [command[0], "-X", "importtime", *command[1:]]
    said = subprocess.run(timed, env=env, capture_output=True, text=True, check=False).stderr
    rows = re.findall(r"import time: +(\d+) \| +(\d+) \| +(\S+)", said)
    rows.sort(key=lambda row: -int(row[0]))
    return [f"{int(own) / 1000:.0f} ms {name}" for own, _, name in rows[:most]]


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--imports", action="store_true")
    own, rest = parser.parse_known_args()
    options = arguments(__doc__.splitlines()[0], argv=rest)
    report = Report("cli_startup")
    with tempfile.TemporaryDirectory() as root:
        home = Path(root) / "home"
        write_small_model(home / "models" / "served")
        bad = Path(root) / "bad.jsonl"
        bad.write_text('{"messages": [{"role": "user", "content": "a"}]}\n{"messages": 3}\n')
        env = os.environ | {"RONDO_HOME": str(home)}
        for line, target in COMMANDS.items():
            words = line.replace("bad.jsonl", str(bad)).split()[1:]
            command = [sys.executable, "-m", "rondo", *words]
            seconds = min(cpu_seconds(command, env) for _ in range(2 if options.quick else 7))
            report.ours[line] = seconds
            report.limit[line] = target
            if own.imports:
                say(f"{line}: {', '.join(slow_imports(command, env))}")
    report.limit["how"] = "the target"
    report.show(options.json)


if __name__ == "__main__":
    main()
