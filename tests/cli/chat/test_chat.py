"""`rondo chat` on a terminal, as its users type."""

import json
from pathlib import Path

import pytest

from rondo.cli.chat.sampling import SETTINGS
from rondo.cli.chat.session import HELP
from support.ports import free_port
from support.terminal import Terminal
from support.waiting import scaled


@pytest.fixture
def environment(chat_home: Path, tmp_path: Path) -> dict[str, str]:
    return {"RONDO_HOME": str(chat_home), "RONDO_BASE_URL": ""}


def test_a_conversation(environment: dict[str, str], tmp_path: Path, chat_home: Path) -> None:
    flags = ("--max-tokens=8", "--temperature=0", "--log.level=error")
    with Terminal("chat", "tuned", *flags, environment=environment) as terminal:
        terminal.expect("model: tuned in this process")
        terminal.expect("> ")
        terminal.type("the user \\")
        terminal.expect(r"\. ")
        terminal.type("asks")
        terminal.expect(r"\d+ tokens?.*first token after")
        terminal.expect("> ")
        terminal.type('"""')
        terminal.type("two")
        terminal.type('lines"""')
        terminal.expect(r"\d+ tokens?.*first token after")
        terminal.type("/logprobs")
        terminal.expect(r"mean -\d+\.\d+, perplexity \d+\.\d+")
        terminal.type("/system Be brief.")
        terminal.expect("system prompt: Be brief.")
        terminal.type("/set temprature 1")
        terminal.expect("error: Unknown setting temprature. Did you mean temperature?")
        terminal.type("/set temperature 0.5")
        terminal.expect("temperature = 0.5")
        terminal.type(f"/save {tmp_path / 'talk.jsonl'}")
        terminal.expect("saved in ")
        terminal.type("/nothing")
        terminal.expect("error: There is no command /nothing")
        terminal.type("/help")
        terminal.expect("/compare A B")
        terminal.type("/clear")
        terminal.expect("the conversation is empty")
        terminal.type("/regenerate")
        terminal.expect("error: There is no input to answer again")
        terminal.expect("> ")
        terminal.interrupt("Ctrl-D or /exit leaves")
        terminal.expect("\n> ")
        terminal.send("\x04")
        assert terminal.end() == 0
    record = json.loads((tmp_path / "talk.jsonl").read_text())
    roles = [message["role"] for message in record["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert record["messages"][1]["content"] == "the user \nasks"
    assert record["messages"][3]["content"] == "two\nlines"
    history = chat_home / "chat_history"
    assert "/system Be brief." in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_lists_fit_80_columns() -> None:
    lines = [f"{command:<16} {meaning}" for command, meaning in HELP.items()]
    lines += [f"{name:<19} {'default':<9} {meaning}" for name, (_, meaning) in SETTINGS.items()]
    assert max(map(len, lines)) <= 80


def test_comparison_of_two_models(environment: dict[str, str], tmp_path: Path) -> None:
    with Terminal("chat", "base", "--max-tokens=4", environment=environment) as terminal:
        terminal.expect("> ")
        terminal.type("/compare base tuned")
        terminal.expect("each input goes to base and tuned")
        for command in ("the user asks", "/regenerate"):
            terminal.type(command)
            for name in ("base", "tuned"):
                terminal.expect(rf"\n{name}:\n")
                terminal.expect("first token after")
        terminal.type("/compare base nothing")
        terminal.expect("error: There is no model 'nothing'")
        terminal.type("/compare off")
        terminal.expect("model: base")
        terminal.type("/exit")
        assert terminal.end() == 0


def test_a_model_without_a_template_continues_the_text(environment: dict[str, str]) -> None:
    with Terminal("chat", "plain", "--max-tokens=4", environment=environment) as terminal:
        terminal.expect("> ")
        terminal.type("the user")
        terminal.expect("The model has no chat template: it continues the text")
        terminal.expect("\n> ")
        terminal.send("\x04")
        assert terminal.end() == 0


def test_an_answer_is_stopped_and_the_conversation_continues(environment, other) -> None:
    arguments = ("chat", other.url, "--key=mine", "--model=second")
    with Terminal(*arguments, environment=environment) as terminal:
        terminal.expect(f"model: second at {other.url}")
        terminal.expect("> ")
        terminal.type("Hi")
        terminal.expect("Hello from second")
        terminal.send("\x03")
        terminal.expect("3 tokens.*stopped")
        assert other.left.wait(scaled(30))
        other.endless = False
        terminal.type("And now?")
        terminal.expect("Hello from second")
        terminal.type("/logprobs")
        terminal.expect("error: There is no answer with log-probabilities")
        terminal.type("/compare first second")
        terminal.expect("first:\nHello from first")
        terminal.expect("second:\nHello from second")
        terminal.expect("\n> ")
        terminal.send("\x04")
        assert terminal.end() == 0
    assert set(other.keys) == {"Bearer mine"}
    said = [message["content"] for message in other.bodies[1]["messages"]]
    assert said == ["Hi", "Hello from second", "And now?"]


def test_without_a_model_the_server_that_runs(environment, other) -> None:
    with Terminal("chat", environment={**environment, "RONDO_BASE_URL": other.url}) as terminal:
        terminal.expect(f"model: first at {other.url}")
        terminal.expect("\n> ")
        terminal.send("\x04")
        assert terminal.end() == 0


def test_no_model_and_no_server(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    environment = {"RONDO_HOME": str(tmp_path), "RONDO_BASE_URL": nowhere}
    with Terminal("chat", environment=environment) as terminal:
        terminal.expect(f"error: no answer from {nowhere}")
        assert terminal.end() == 1
