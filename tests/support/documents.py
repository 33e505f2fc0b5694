"""The code blocks of a Markdown document, executed in order as its reader would: one shell, one folder, one home.

A block runs if it is marked `sh`, `bash` or `python`. `rondo serve`, `up` and `demo` stay in the background, and the
next command starts once the server is ready. Ports 8000 and 8001 are replaced by free ones. A comment before a block
changes this, with options separated by semicolons:

    <!-- test: needs vllm -->        not executed here, but its flags are parsed; GROUPS has the other groups
    <!-- test: fragment -->          part of a program: only its syntax is checked
    <!-- test: synopsis -->          a list of commands: only the verbs are checked
    <!-- test: fails -->             the last command exits with an error
    <!-- test: file prepare.py -->   the block is saved under this name
    <!-- test: output -->            what the block before it prints; `...` is any text, and numbers may differ
    <!-- test: with client.py -->    runs after tests/docs/setup/client.py, which defines its variables
    <!-- test: server demo -->       needs `rondo serve demo`
    <!-- test: env A=1 B=2 -->       with these variables, such as a lower number of steps
    <!-- test: put A for B -->       with A in place of B, such as a lower number of steps in a flag
    <!-- test: restart -->           ends the server of an earlier block that listens on the same port
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self

import httpx

from rondo.cli.main import VERBS, dispatch
from rondo.cli.options.arguments import VerbParser
from support.forks import python
from support.home import own_home
from support.ports import free_port, listening
from support.waiting import scaled, wait_until

SHORT_DEMO = """
import sys
from dataclasses import replace
from rondo.cli.main import main
from rondo.demo import pipeline, recipe
steps = {"pretrain_steps": 2, "sft_steps": 2, "rl_steps": 2, "rl_check_every": 2}
fewer = {"stories": 300, "sft_examples": 500, "prompts_per_step": 4, "samples_per_prompt": 4, "eval_prompts": 8}
short = replace(recipe.DemoRecipe(), **steps, **fewer)
pipeline.recipe_for = lambda task: short
sys.exit(main())
"""
"""`rondo` with a demo model of its usual size that has learned next to nothing, since it is made in seconds."""

ROOT = Path(__file__).parents[2]
SETUP = ROOT / "tests" / "docs" / "setup"
FENCE = re.compile(
    r"^(?:<!-- test: (?P<test>[^\n]*?) -->\n\s*)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.M | re.S
)
SERVER = re.compile(r"^make up\b|^(?:\w+=\S+ )*(?:\S*/)?rondo (?:serve|up|demo)\b(?!.*(?:--no-serve|--help))")
INSTALLERS = ("pip", "pip3", "uv", "uvx", "apt", "apt-get", "sudo", "vllm", "torchrun", "mpirun", "srun")
"""Commands that are never executed."""
TARGETS = re.compile(r"^([a-z-]+):", re.M)
PORTS = re.compile(r"(?<![\w.])(8000|8001)(?!\w)")
GROUPS = frozenset(["gpu", "slurm", "vllm", "hub", "s3", "install", "minutes", "peer"])
ASSIGNED = re.compile(r"\w+=")
SECONDS = 240.0
ANY_NUMBER = r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?"
NUMBER = re.compile(ANY_NUMBER)
KEPT = r"^declare -(-|x) [A-Za-z_]+="
OWN = r" (BASH\w*|_|SHLVL|PWD|OLDPWD|PIPESTATUS|EUID|UID|PPID)="


@dataclass
class Block:
    kind: str
    code: str
    place: str
    options: dict[str, str] = field(default_factory=dict)


def blocks(file: Path) -> list[Block]:
    text = file.read_text()
    found = []
    for match in FENCE.finditer(text):
        line = text[: match.start("code")].count("\n")
        options = {}
        for option in filter(None, (match["test"] or "").split("; ")):
            name, _, value = option.partition(" ")
            options[name] = value
        found.append(Block(match["kind"], match["code"], f"{file.relative_to(ROOT)}:{line}", options))
    return found


class Reader:
    """Executes blocks in a folder with `docs/` and `examples/`; its servers end with it."""

    def __init__(self, folder: Path) -> None:
        self.work, home = folder / "work", folder / "home"
        self.work.mkdir()
        self.home = own_home(home / ".rondo")
        for name in ("docs", "examples", "bench", "Makefile", "pyproject.toml", "constraints.txt"):
            (self.work / name).symlink_to(ROOT / name)
        programs = self.work / ".venv" / "bin"
        programs.mkdir(parents=True)
        commands = {"rondo": f"exec {python()} -c '{SHORT_DEMO}'", "python": f"exec {python()}"}
        for name in INSTALLERS:
            commands[name] = (
                f"echo 'a test installs nothing: mark the block with needs install' >&2; exit 1; {name}"
            )
        for name, command in commands.items():
            (programs / name).write_text(f'#!/bin/sh\n{command} "$@"\n')
            (programs / name).chmod(0o755)
        (self.work / ".venv" / ".installed-core").touch()
        self.ports = {name: str(free_port()) for name in ("8000", "8001")}
        self._state = folder / "variables"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RONDO_")},
            "HOME": str(home),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "RONDO_SERVER_PORT": self.ports["8001"],
            "PORT": self.ports["8000"],
            "COLUMNS": "80",
        }
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._said = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for port in list(self._servers):
            self._stop(port)

    def read(self, file: Path) -> None:
        """Executes all blocks of a document."""
        for block in blocks(file):
            try:
                self._run(block)
            except AssertionError as error:
                raise AssertionError(f"{block.place}: {error}") from None

    def _run(self, block: Block) -> None:
        options = block.options
        if "put" in options:
            new, old = options["put"].split(" for ")
            assert old in block.code, f"{old} is not in the block"
            block.code = block.code.replace(old, new)
        if group := options.get("needs"):
            assert group in GROUPS, f"unknown group {group!r}"
        if "file" in options:
            (self.work / options["file"]).write_text(block.code)
        elif "output" in options:
            check_output(block.code, self._said)
        elif block.kind == "python":
            self._python(block)
        elif block.kind in ("sh", "bash"):
            self._shell(block)

    def _python(self, block: Block) -> None:
        ast.parse(block.code)
        if "fragment" in block.options or "needs" in block.options:
            return
        if "server" in block.options:
            self._serve(f"rondo serve {block.options['server']}", block)
        before = SETUP / block.options["with"] if "with" in block.options else None
        code = (before.read_text() if before else "") + block.code
        self._said = self._call([str(python()), "-c", self._local(code)], block)

    def _shell(self, block: Block) -> None:
        self._said = ""
        commands = list(statements(block.code))
        for number, command in enumerate(commands, 1):
            if "synopsis" in block.options:
                check_verb(command)
            elif command.startswith("make ") and not SERVER.match(command):
                target = command.split()[1]
                assert target in TARGETS.findall((ROOT / "Makefile").read_text()), f"no target {target}"
            elif "needs" in block.options or "fragment" in block.options:
                with self._here(block):
                    check_flags(self._local(command))
            elif SERVER.match(command):
                if "restart" in block.options:
                    self._stop(self._port(command))
                self._serve(self._local(command), block)
            else:
                fails = "fails" in block.options and number == len(commands)
                script = f"{self._before()}\nset -eo pipefail\n{self._local(command)}\n{self._after()}"
                self._said += self._call(["bash", "-c", script], block, fails)

    def _local(self, code: str) -> str:
        return PORTS.sub(lambda match: self.ports[match[0]], code)

    def _before(self) -> str:
        return f". {self._state} 2>/dev/null || true"

    def _after(self) -> str:
        """Variables last until the end of the document."""
        return f"declare -p | grep -E '{KEPT}' | grep -vE '{OWN}' > {self._state}"

    def _env(self, block: Block) -> dict[str, str]:
        given = (pair.partition("=") for pair in block.options.get("env", "").split())
        port = self.ports["8000" if self.ports["8000"] in self._servers else "8001"]
        url = {"RONDO_BASE_URL": f"http://127.0.0.1:{port}"}
        return {**self._environment, **url, **{name: value for name, _, value in given}}

    @contextlib.contextmanager
    def _here(self, block: Block) -> Iterator[None]:
        before, environment = Path.cwd(), dict(os.environ)
        os.chdir(self.work)
        os.environ.update(self._env(block))
        try:
            yield
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(environment)

    def _call(self, command: list[str], block: Block, fails: bool = False) -> str:
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self._env(block),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=scaled(SECONDS),
            text=True,
        )
        assert bool(done.returncode) == fails, f"exit code {done.returncode}\n{done.stdout[-3000:]}"
        return done.stdout

    def _serve(self, command: str, block: Block) -> None:
        port = self._port(command)
        assert port not in self._servers, f"a server of an earlier block is on the port of {command!r}"
        log = self.work / f"server-{port}.log"
        with log.open("wb") as out:
            script = f"{self._before()}\n{command}"
            self._servers[port] = process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.work,
                env=self._env(block),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

        def ready() -> bool:
            assert process.poll() is None, f"the server has ended\n{log.read_text()[-3000:]}"
            if not listening(int(port)):
                return False
            try:
                return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=5).is_success
            except httpx.HTTPError:
                return False

        wait_until(ready, SECONDS)
        self._said += log.read_text()

    def _port(self, command: str) -> str:
        given = re.search(r"(?:--port[ =]|PORT=)(\d+)", self._local(command))
        default = "8000" if re.search(r"^make up\b|rondo up\b", command) else "8001"
        return given[1] if given else self.ports[default]

    def _stop(self, port: str) -> None:
        process = self._servers.pop(port, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            wait_until(lambda: not listening(int(port)))


def statements(code: str) -> Iterator[str]:
    """Commands of a shell block, each with its continuation lines."""
    lines: list[str] = []
    for line in code.splitlines():
        lines.append(line)
        text = "\n".join(lines)
        if line.endswith("\\") or _open_quote(text):
            continue
        lines.clear()
        if text.strip() and not text.lstrip().startswith("#"):
            yield text
    assert not lines, f"a quote is not closed: {lines}"


def _open_quote(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


def check_output(expected: str, output: str) -> None:
    """Each line appears in the output, in this order."""
    position = 0
    for line in filter(str.strip, expected.splitlines()):
        if line.strip() == "...":
            continue
        pieces = NUMBER.split(line.strip())
        pattern = ANY_NUMBER.join(re.escape(piece) for piece in pieces).replace(r"\.\.\.", ".*?")
        pattern = re.sub(r"(\\ )+", r"\\s+", pattern)
        match = re.compile(pattern).search(output, position)
        assert match, f"the output has no line {line!r}:\n{output[position:][-3000:]}"
        position = match.end()


class _Parsed(Exception):
    pass


def check_flags(command: str) -> None:
    """Parses the arguments of each `rondo` command without executing it."""
    words = shlex.split(command.replace("\\\n", " ").partition("2>")[0], comments=True)
    while words and ASSIGNED.match(words[0]):
        words.pop(0)
    if "rondo" not in words:
        return
    arguments = [word for word in words[words.index("rondo") + 1 :] if word != "..."]
    parse = VerbParser.parse_args

    def stop(parser: VerbParser, *given: object) -> NoReturn:
        parse(parser, *given)  # type: ignore[arg-type]
        raise _Parsed

    VerbParser.parse_args = stop  # type: ignore[assignment,method-assign]
    try:
        dispatch(arguments)
    except _Parsed:
        pass
    finally:
        VerbParser.parse_args = parse  # type: ignore[method-assign]


def check_verb(command: str) -> None:
    words = shlex.split(command, comments=True)
    assert words[:1] == ["rondo"], f"not a command of rondo: {command}"
    assert words[1] in VERBS, f"there is no verb {words[1]}"
