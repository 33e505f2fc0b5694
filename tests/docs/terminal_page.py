"""Writes docs/terminal.md, captures of each verb on a terminal of 80 columns: `python tests/docs/terminal_page.py`.

The commands run in order in a fresh home, against a hub on loopback. Some minutes on two cores.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from rondo import models
from rondo.models.files.gguf.export import export_gguf
from support.home import own_home
from support.hub import FakeHub
from support.ports import free_port
from support.terminal import Terminal
from support.tiny import tiny_model, tiny_tokenizer

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "terminal.md"
HOME = Path("/tmp/me")
"""Shown as /home/me."""
HEAD = """# Terminal

Output of each verb on a terminal of 80 columns, in the order in which the commands were typed in a fresh home. The
model has random weights, so its answers and scores mean nothing. `make terminal` writes this page again.
"""
SMALL = "--train.tokens_per_step=1k --train.max_length=256"
STEP = "--rl.steps=3 --batch=4 --group=4 --rl.max_tokens=8"
SESSIONS: dict[str, list[str]] = {
    "Help": ["rondo --help", "rondo train --help", "rondo --help=warmup"],
    "Machine": ["rondo doctor", "rondo config --explain train.lr"],
    "Models": [
        "rondo pull lab/tiny",
        "rondo pull lab/tiny-GGUF",
        "rondo pull lab/tiny-GGUF:Q8_0",
        "rondo pull lab/tony",
        "rondo run lab/tiny-GGUF:Q8_0 'sort 3 1 2' --max-tokens 12",
        "rondo model new fresh --preset tiny",
        "rondo model inspect fresh",
        "rondo model list",
    ],
    "Planning": ["rondo plan llama-3-8b --gpus 8", "rondo plan llama-3-8b --qlora --gpu rtx-4090"],
    "Data": ["rondo data --help", "rondo train sft --model lab/tiny --data broken.jsonl"],
    "Training": [
        f"rondo train sft --model lab/tiny --data chat.jsonl --lora --name polite {SMALL}",
        "rondo job list",
        "rondo job show polite",
        "rondo job logs polite -n 4",
        "rondo job report polite",
        "rondo evaluate polite --data chat.jsonl",
    ],
    "Reinforcement learning": [
        f"rondo rl --model polite --task reverse --name reversed {STEP}",
        "rondo rl rollouts reversed",
        "rondo rl alarms reversed",
        "rondo rl --model polite --task revers",
    ],
    "Chat": ["rondo chat polite --max-tokens 8"],
    "Serving": ["rondo serve polite --port PORT", "rondo bench latency polite --input-len 8 --output-len 8"],
    "Weight transfer": ["rondo weights simulate --receivers 256,4096"],
    "Management": [
        "rondo job rename reversed mirror",
        "rondo job rm mirror --yes",
        "rondo model cp polite kept",
        "rondo ls",
        "rondo model rm kept --yes",
    ],
    "Demo": ["rondo demo --quick --no-serve"],
}
SERVICE = (
    "rondo ps",
    "rondo keys create ann --models polite",
    "rondo keys list",
    "rondo generate prompts.jsonl --model polite --max-tokens 8",
    "rondo queue list",
    "rondo registry list",
    "rondo file list",
    "rondo batch list",
    "rondo logs engine-1 -n 4",
    "rondo db check",
    "rondo down",
)


def screen(raw: str) -> list[str]:
    """The lines that remain on a terminal: lines that are erased or overwritten are left out."""
    lines, row, column = [""], 0, 0
    for token in re.findall(
        r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\001\002]|\r|\n|[^\x1b\r\n\001\002]+", raw
    ):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r":
            column = 0
        elif re.fullmatch(r"\x1b\[\d*A", token):
            row = max(row - int(token[2:-1] or 1), 0)
        elif token in ("\x1b[2K", "\x1b[K"):
            lines[row] = "" if token == "\x1b[2K" else lines[row][:column]
        elif token[0] not in "\x1b\001\002":
            line = lines[row].ljust(column)
            lines[row] = line[:column] + token + line[column + len(token) :]
            column += len(token)
            continue
    return [re.sub(r"[\x00-\x1f\x7f-\x9f\ufffd]", "?", line).rstrip() for line in lines]


def capture(command: str, more: Callable[[Terminal], None] = lambda _: None) -> str:
    """The command and its output. `more` types into the running command."""
    with Terminal(*shlex.split(command)[1:], environment={}) as terminal:
        more(terminal)
        terminal.end(900)
        lines = screen(terminal.raw)
    shown = textwrap.wrap(f"$ {command}", 78, subsequent_indent="    ", break_on_hyphens=False)
    text = " \\\n".join(shown) + "\n" + "\n".join(lines).strip("\n")
    text = (
        text.replace(str(ROOT), "/home/me/rondo")
        .replace(str(HOME), "/home/me")
        .replace(os.environ["HF_ENDPOINT"], "https://huggingface.co")
    )
    return f"```text\n{text.rstrip()}\n```\n"


def chat(terminal: Terminal) -> None:
    for line in ("sort 3 1 2", "/set temperature 0", "/regenerate", "/logprobs", "/help", "/exit"):
        terminal.read(10)
        terminal.type(line)


def ask(url: str) -> Callable[[Terminal], None]:
    """One request to a server when it answers, then Ctrl-C."""

    def asked(terminal: Terminal) -> None:
        while not _answers(url):
            terminal.read(0.5)
        terminal.read(2)
        terminal.send("\x03")

    return asked


def _answers(url: str) -> bool:
    body = {"model": "polite", "messages": [{"role": "user", "content": "sort 3 1 2"}], "max_tokens": 8}
    try:
        return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def service(port: int) -> Iterator[str]:
    """The verbs beside a running `rondo up`."""
    command = f"rondo up polite --port {port}"
    inside: list[str] = []

    def beside(terminal: Terminal) -> None:
        while not _answers(f"http://127.0.0.1:{port}"):
            terminal.read(0.5)
        terminal.read(3)
        os.environ["RONDO_BASE_URL"] = f"http://127.0.0.1:{port}"
        inside.extend(map(capture, SERVICE))
        del os.environ["RONDO_BASE_URL"]

    yield capture(command, beside)
    yield from inside


def prepare(hub: FakeHub) -> None:
    """A fresh home, the files that the commands name, and the repositories of the hub."""
    shutil.rmtree(HOME, ignore_errors=True)
    own_home(HOME / ".rondo")  # with compiled kernels
    os.chdir(HOME)
    for name in [name for name in os.environ if name.startswith(("RONDO_", "HF_"))]:
        del os.environ[name]
    os.environ |= {"HOME": str(HOME), "HF_ENDPOINT": hub.url}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "model"
        models.save(tiny_model(max_position_embeddings=2048, hidden_size=64, head_dim=16), folder)
        tiny_tokenizer().save(folder)
        hub.repo("lab/tiny", folder)
        files = [export_gguf(folder, Path(made) / f"tiny-{kind}.gguf", kind) for kind in ("BF16", "Q8_0")]
        hub.repo("lab/tiny-GGUF", {file.name: file.read_bytes() for file in files})
    turns = [
        [{"role": "user", "content": f"sort {n} 1"}, {"role": "assistant", "content": f"1 {n}"}]
        for n in range(2, 90)
    ]
    Path("chat.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in turns))
    Path("prompts.jsonl").write_text("".join(f'"sort {n} 1"\n' for n in range(2, 22)))
    Path("broken.jsonl").write_text(json.dumps({"instruct": "sort 2 1", "output": "1 2"}) + "\n")


def page() -> Iterator[str]:
    port = free_port()
    more = {"rondo chat": chat, "rondo serve": ask(f"http://127.0.0.1:{port}")}
    yield HEAD
    for title, commands in SESSIONS.items():
        yield f"## {title}\n"
        for command in commands:
            command = command.replace("PORT", str(port))
            print(command, flush=True)
            yield capture(command, more.get(" ".join(command.split()[:2]), lambda _: None))
    yield "## Gateway\n"
    yield from service(free_port())


if __name__ == "__main__":
    with FakeHub().running() as hub:
        prepare(hub)
        with PAGE.open("w", encoding="utf-8") as file:
            for number, part in enumerate(page()):
                file.write(("\n" if number else "") + part)
                file.flush()
    print(PAGE)
