"""The conversation of `rondo chat`: messages, the commands that begin with a slash, and the answers as they arrive."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from rondo.base.errors import ConfigError, RondoError, StorageError
from rondo.base.storage.paths import path_of
from rondo.base.telemetry.activity import activity
from rondo.cli.chat.sampling import SETTINGS, read_setting
from rondo.cli.chat.speaker import Answer, Message, Speaker, Token
from rondo.cli.chat.terminal import Terminal

HELP = {
    "/system TEXT": "set the system prompt; 'off' removes it, no TEXT shows it",
    "/regenerate": "answer the last input again",
    "/compare A B": "send each input to two models; /compare off ends it",
    "/set NAME VALUE": "change a sampling setting; /set alone lists them",
    "/logprobs": "log-probabilities of the last answer's tokens",
    "/save [FILE]": "append the conversation to FILE (chat.jsonl) as training data",
    "/clear": "forget the conversation",
    "/help": "this list",
    "/exit": "leave; so does Ctrl-D",
}
NAMES = tuple(line.split()[0] for line in HELP)
LISTED = 24
"""Most tokens with a line of their own."""
SHADES = ((0.9, "green"), (0.5, "38;5;190"), (0.1, "yellow"), (0.0, "red"))
"""Colours of a token by its probability."""


@dataclass
class Lane:
    """One model with its own answers."""

    speaker: Speaker
    messages: list[Message] = field(default_factory=list)
    last: Answer | None = None


class Session:
    """`load` makes a model by its name; `keep` is False if each input is sent without the earlier ones."""

    def __init__(
        self,
        speaker: Speaker,
        load: Callable[[str], Speaker],
        terminal: Terminal,
        options: dict[str, Any],
        keep: bool = True,
    ) -> None:
        self.lanes = [Lane(speaker)]
        self.system = ""
        self.options = options
        self._main = self.lanes[0]
        self._known = {speaker.name: speaker}
        self._load = load
        self._terminal = terminal
        self._keep = keep

    def close(self) -> None:
        for speaker in self._known.values():
            speaker.close()

    def handle(self, text: str) -> bool:
        """Executes a command or sends the input; False ends the conversation."""
        if not text.strip():
            return True
        if not text.startswith("/"):
            self._send(text)
            return True
        name, _, rest = text.strip().partition(" ")
        if name in ("/exit", "/quit", "/bye"):
            return False
        commands: dict[str, Callable[[str], None]] = {
            "/system": self._set_system,
            "/regenerate": self._regenerate,
            "/compare": self._compare,
            "/set": self._set,
            "/logprobs": self._logprobs,
            "/save": self._save,
            "/clear": self._clear,
            "/help": self._help,
        }
        found = [command for command in commands if command.startswith(name)]
        if len(found) != 1 and name not in commands:
            raise ConfigError(f"There is no command {name}. See /help, or begin the text with a space.")
        commands[name if name in commands else found[0]](rest.strip())
        return True

    def _send(self, text: str) -> None:
        text = text.removeprefix(" ") if text.lstrip().startswith("/") else text
        for lane in self.lanes:
            lane.messages.append({"role": "user", "content": text})
        self._answer()

    def _answer(self) -> None:
        for lane in self.lanes:
            if len(self.lanes) > 1:
                print(self._terminal.paint(f"{lane.speaker.name}:", "bold"), flush=True)
            try:
                self._answer_of(lane)
            except RondoError as error:
                self._terminal.error(error.message)

    def _answer_of(self, lane: Lane) -> None:
        answer = lane.last = Answer()
        continued, stopped = lane.speaker.continues, False
        try:
            with _Printer(self._terminal) as show:
                lane.speaker.ask(self._prompt(lane), self.options, show, answer)
        except KeyboardInterrupt:
            stopped = True
        except RondoError:
            if not answer.text:
                lane.messages.pop()
            raise
        if answer.text or not stopped:
            lane.messages.append({"role": "assistant", "content": answer.text})
        else:
            lane.messages.pop()
        self._terminal.note(summary(answer, stopped))
        if lane.speaker.continues and not continued:
            self._terminal.note("The model has no chat template: it continues the text.")

    def _prompt(self, lane: Lane) -> list[Message]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *(lane.messages if self._keep else lane.messages[-1:])]

    def _set_system(self, text: str) -> None:
        if text:
            self.system = "" if text == "off" else text
        self._terminal.note(f"system prompt: {self.system or 'none'}")

    def _regenerate(self, _: str) -> None:
        if not any(self._forget_answer(lane) for lane in self.lanes):
            raise ConfigError("There is no input to answer again.")
        self._answer()

    def _forget_answer(self, lane: Lane) -> bool:
        """Whether an input remains to be answered."""
        if lane.messages and lane.messages[-1]["role"] == "assistant":
            lane.messages.pop()
        return bool(lane.messages)

    def _compare(self, text: str) -> None:
        if text == "off":
            self.lanes = [self._main]
            self._terminal.note(f"model: {self._main.speaker.name}")
            return
        names = text.split()
        if len(names) != 2:
            raise ConfigError("Name two models: /compare base tuned. /compare off ends the comparison.")
        speakers = [self._speaker(name) for name in names]
        self.lanes = [Lane(speaker, list(self._main.messages)) for speaker in speakers]
        waiting = [self._forget_answer(lane) for lane in self.lanes]
        if any(waiting):
            self._answer()
        else:
            self._terminal.note(f"each input goes to {' and '.join(names)}; /compare off ends it")

    def _speaker(self, name: str) -> Speaker:
        if name not in self._known:
            self._known[name] = self._load(name)
        return self._known[name]

    def _set(self, text: str) -> None:
        name, _, value = text.replace("=", " ", 1).partition(" ")
        name = name.replace("-", "_")
        if not name:
            for known, (_, meaning) in SETTINGS.items():
                self._terminal.note(f"{known:<19} {self.options.get(known, 'default')!s:<9} {meaning}")
            return
        if value.strip() in ("", "default"):
            read_setting(name, "1")
            self.options.pop(name, None)
        else:
            self.options[name] = read_setting(name, value.strip())
        self._terminal.note(f"{name} = {self.options.get(name, 'default')}")

    def _logprobs(self, _: str) -> None:
        for lane in self.lanes:
            if lane.last is None or not lane.last.tokens:
                raise ConfigError("There is no answer with log-probabilities yet.")
            for line in logprob_lines(lane.last.tokens, self._terminal):
                print(line)

    def _save(self, text: str) -> None:
        file = path_of(text or "chat.jsonl", "file")
        if not self._main.messages:
            raise ConfigError("There is no conversation to save.")
        try:
            with file.open("a", encoding="utf-8") as out:
                for lane in self.lanes:
                    system = [{"role": "system", "content": self.system}] if self.system else []
                    record = {"messages": [*system, *lane.messages]}
                    out.write(json.dumps(record, ensure_ascii=False) + "\n")
        except OSError as error:
            raise StorageError(
                f"Cannot write {file}: {error.strerror}. Name another file: /save FILE."
            ) from error
        self._terminal.note(f"saved in {file}")

    def _clear(self, _: str) -> None:
        for lane in {id(lane): lane for lane in [self._main, *self.lanes]}.values():
            lane.messages.clear()
            lane.last = None
        self._terminal.note("the conversation is empty")

    def _help(self, _: str) -> None:
        for command, meaning in HELP.items():
            self._terminal.note(f"{command:<16} {meaning}")
        self._terminal.note('A \\ at the end of a line continues it; """ begins and ends several lines.')
        self._terminal.note("Ctrl-C stops an answer.")


class _Printer:
    """Prints the pieces of an answer, its reasoning dimmed; before the first one, the wait is an activity."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._wait = ExitStack()
        self._thinking = False
        self._column = 0

    def __enter__(self) -> Callable[[str, str], None]:
        self._wait.enter_context(activity("waiting for the first token"))
        return self.show

    def __exit__(self, *error: object) -> None:
        self._wait.close()
        if self._column:
            print(flush=True)

    def show(self, reasoning: str, text: str) -> None:
        if not reasoning and not text:
            return
        self._wait.close()
        if reasoning:
            self._thinking = True
            self._print(self._terminal.paint(self._terminal.visible(reasoning), "dim"))
        if text:
            if self._thinking:
                self._thinking = False
                self._print("\n\n")
            self._print(self._terminal.visible(text))

    def _print(self, text: str) -> None:
        print(text, end="", flush=True)
        self._column = 0 if text.endswith("\n") else 1


def summary(answer: Answer, stopped: bool = False) -> str:
    """`12 tokens, 340 tokens/s, first token after 50 ms`"""
    count = answer.output_tokens
    parts = [f"{count} token{'' if count == 1 else 's'}"]
    if (speed := answer.tokens_per_second) is not None:
        parts.append(f"{speed:.0f} tokens/s" if speed >= 10 else f"{speed:.1f} tokens/s")
    if answer.first is not None:
        first = answer.first_seconds
        parts.append(
            f"first token after {first * 1000:.0f} ms" if first < 1 else f"first token after {first:.1f} s"
        )
    if stopped:
        parts.append("stopped")
    elif answer.finish_reason == "length":
        parts.append("cut at the maximum length")
    return ", ".join(parts)


def logprob_lines(tokens: list[Token], terminal: Terminal) -> list[str]:
    """The text with each token coloured by its probability, then lines of all or of the least likely tokens."""
    painted = "".join(terminal.paint(terminal.visible(one.text), _shade(one.logprob)) for one in tokens)
    mean = sum(token.logprob for token in tokens) / len(tokens)
    limits = [(f"over {least:g}" if least else f"under {SHADES[-2][0]:g}", shade) for least, shade in SHADES]
    legend = "  ".join(terminal.paint(limit, shade) for limit, shade in limits)
    rest = f"; the {LISTED} least likely tokens:" if len(tokens) > LISTED else ""
    lines = [painted, f"probability: {legend}", f"mean {mean:.3f}, perplexity {math.exp(-mean):.2f}{rest}"]
    for token in (
        tokens if len(tokens) <= LISTED else sorted(tokens, key=lambda token: token.logprob)[:LISTED]
    ):
        others = "  ".join(f"{text!r} {logprob:.2f}" for text, logprob in token.others if text != token.text)
        shown = terminal.paint(f"{token.logprob:8.3f}", _shade(token.logprob))
        lines.append(f"{shown}  {token.text!r}" + (f"   {others}" if others else ""))
    return lines


def _shade(logprob: float) -> str:
    probability = math.exp(min(logprob, 0.0))
    return next(shade for least, shade in SHADES if probability >= least)
