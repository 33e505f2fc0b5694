"""Prompts are those of transformers, for chat templates in the styles of public models."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from rondo.base.errors import InvalidRequest, ModelError
from rondo.text import Tokenizer, train_bpe
from rondo.text.conversation.templates import CHATML

Conversation = list[dict[str, Any]]

TEMPLATES = {path.stem: path.read_text() for path in (Path(__file__).parent / "templates").glob("*.jinja")}
TEMPLATES["chatml"] = CHATML

SPECIAL = [
    *(
        "<pad>",
        "<|im_start|>",
        "<|im_end|>",
        "[INST]",
        "[/INST]",
        "[TOOL_CALLS]",
        "<start_of_turn>",
        "<end_of_turn>",
    ),
    *(
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<|end|>",
        "<|user|>",
    ),
    *("<|start|>", "<|message|>", "<|channel|>", "<s>", "</s>"),
]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather & temperature of a <place>, "now" or later',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City, e.g. Zürich or 東京"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
                "note": {"type": ["string", "null"]},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {}}}


def call(name: str, arguments: object, id: str = "abcde1234") -> dict[str, Any]:
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "You are terse. Œuvre & <b>bold</b>"}
USER = {"role": "user", "content": "  What's 2 + 2? 😀 'quoted' \"double\"\n"}
ANSWER = {"role": "assistant", "content": "<think>add</think> Four — 四.\n"}
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        call("get_weather", {"city": "東京", "where": {"lat": 35.6, "deep": [1, [2, {"x": None}]]}})
    ],
}
TWO_CALLS = {
    "role": "assistant",
    "content": "Looking.",
    "tool_calls": [call("get_weather", {"city": "A<B"}), call("now", {}, "zyxwv9876")],
}
RESULT = {
    "role": "tool",
    "content": '{"temp": 21.5, "sky": "晴れ"}',
    "tool_call_id": "abcde1234",
    "name": "get_weather",
}
CLOCK_RESULT = {"role": "tool", "content": "12:00", "tool_call_id": "zyxwv9876", "name": "now"}

CONVERSATIONS: dict[str, Conversation] = {
    "one turn": [USER],
    "system": [SYSTEM, USER],
    "two systems": [SYSTEM, SYSTEM, USER],
    "many turns": [SYSTEM, USER, ANSWER, USER, ANSWER, USER],
    "ends with an answer": [USER, ANSWER],
    "a call": [SYSTEM, USER, CALLING],
    "a call answered": [SYSTEM, USER, CALLING, RESULT],
    "a call to its end": [USER, CALLING, RESULT, ANSWER, USER],
    "two calls": [USER, TWO_CALLS, RESULT, CLOCK_RESULT, ANSWER],
    "arguments as text": [USER, {**CALLING, "tool_calls": [call("now", '{"a": 1}')]}, RESULT],
    "reasoning apart": [USER, {"role": "assistant", "content": "4", "thinking": "2 + 2", "name": "m"}],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "text", "text": "two"}]}
    ],
    "empty content": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    "null content": [USER, {"role": "assistant", "content": None}],
    "no content": [{"role": "user"}],
    "unknown role": [{"role": "narrator", "content": "Meanwhile"}],
    "not alternating": [USER, USER],
    "special tokens as text": [{"role": "user", "content": "<|im_end|></s><s> <pad>"}],
    "lines": [{"role": "user", "content": "\n\n a\r\n\tb \u2028 c \u00a0\n"}, ANSWER],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "prompt": {"add_generation_prompt": True},
    "closed": {"add_generation_prompt": False},
    "tools": {"add_generation_prompt": True, "tools": [WEATHER, CLOCK]},
    "tools closed": {"add_generation_prompt": False, "tools": [WEATHER]},
    "no tools": {"add_generation_prompt": True, "tools": []},
    "continue": {"add_generation_prompt": False, "continue_final_message": True},
    "continue thinking": {"add_generation_prompt": False, "continue_final_message": "thinking"},
    "documents": {"add_generation_prompt": True, "documents": [{"title": "T", "text": "<x>\n", "id": 1}]},
    "variables": {
        "add_generation_prompt": True,
        "enable_thinking": False,
        "reasoning_effort": "high",
        "date_string": "1 May",
        "builtin_tools": ["now", "code_interpreter"],
        "tools_in_user_message": False,
        "citation_mode": "fast",
        "bos_token": "<other>",
    },
}

Pair = tuple[Tokenizer, PreTrainedTokenizerFast]


@pytest.fixture(scope="module")
def base(corpus: list[str]) -> Tokenizer:
    return train_bpe(corpus, 500, SPECIAL, bos_token="<s>")


@pytest.fixture(scope="module", params=sorted(TEMPLATES))
def pair(request: pytest.FixtureRequest, base: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Ours and theirs, from the same folder."""
    folder = tmp_path_factory.mktemp(request.param)
    base.with_chat_template(TEMPLATES[request.param]).save(folder)
    return Tokenizer.load(folder), PreTrainedTokenizerFast.from_pretrained(folder)


def expected(theirs: PreTrainedTokenizerFast, messages: Conversation, **options: Any) -> str | None:
    try:
        text = theirs.apply_chat_template(messages, tokenize=False, **options)
    except Exception:  # whatever their template or its rendering raises
        return None
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_prompts_equal_those_of_transformers(pair: Pair, options: dict[str, Any]) -> None:
    ours, theirs = pair
    for name, shared in CONVERSATIONS.items():
        # Each message an object of its own: transformers marks every place where the last one appears.
        messages = [deepcopy(message) for message in shared]
        text = expected(theirs, messages, **options)
        if text is None:
            with pytest.raises(InvalidRequest):
                ours.render(messages, **options)
            continue
        assert ours.render(messages, **options) == text, name
        ids = theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
        assert ours.apply_chat(messages, **options) == ids, name


def test_most_conversations_fit_most_templates(pair: Pair) -> None:
    """Else the comparison above would compare errors only."""
    _, theirs = pair
    plain = ("one turn", "system", "many turns", "ends with an answer", "lines")
    assert all(expected(theirs, CONVERSATIONS[name], add_generation_prompt=True) for name in plain)


@pytest.mark.parametrize("name", ["qwen2_5", "llama3", "mistral", "deepseek_v3", "smollm3", "harmony"])
def test_tools_reach_the_prompt(base: Tokenizer, name: str) -> None:
    ours = base.with_chat_template(TEMPLATES[name])
    text = ours.render([USER, CALLING, RESULT], tools=[WEATHER])
    assert "東京" in text
    assert "晴れ" in text
    assert "get_weather" in text


@pytest.mark.parametrize("name", ["chatml", "smollm3"])
def test_the_assistants_tokens_are_those_transformers_marks(
    base: Tokenizer, tmp_path: Path, name: str
) -> None:
    base.with_chat_template(TEMPLATES[name]).save(tmp_path)
    ours, theirs = Tokenizer.load(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    messages = [SYSTEM, USER, ANSWER, USER, {"role": "assistant", "content": "Ünïcödé 😀."}]
    reference = theirs.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    ids, mask = ours.apply_chat_masked(messages)
    assert ids == reference["input_ids"]
    assert mask == [bool(x) for x in reference["assistant_masks"]]
    assert 0 < sum(mask) < len(mask)


def test_a_refusal_carries_the_templates_words(base: Tokenizer) -> None:
    tokenizer = base.with_chat_template(TEMPLATES["gemma"])
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        tokenizer.render([USER, USER])
    assert caught.value.param == "messages"
    assert "\n" not in str(caught.value)


def test_a_syntax_error_names_the_line(base: Tokenizer) -> None:
    with pytest.raises(ModelError, match="line 2"):
        base.with_chat_template("{{ bos_token }}\n{% for m in messages %}{{ m. }}{% endfor %}")


@pytest.mark.parametrize(
    "attack",
    ["{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ ''.__class__.__base__() }}"],
)
def test_the_sandbox_holds(base: Tokenizer, attack: str) -> None:
    with pytest.raises(ModelError, match="sandbox"):
        base.with_chat_template(attack).render([USER])


def test_messages_are_left_as_they_were(base: Tokenizer) -> None:
    messages = [USER, {"role": "assistant", "content": [{"type": "text", "text": "One"}]}]
    tokenizer = base.with_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    tokenizer.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert messages[1]["content"] == [{"type": "text", "text": "One"}]


def test_no_messages_and_exclusive_options_are_refused(base: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="at least one"):
        base.render([])
    with pytest.raises(InvalidRequest, match="exclude each other"):
        base.render([USER], continue_final_message=True)


def test_named_templates(base: Tokenizer, tmp_path: Path) -> None:
    base.with_chat_template("plain").save(tmp_path)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("with documents")
    ours, theirs = Tokenizer.load(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for tools in (None, [WEATHER]):
        assert ours.render([USER], tools=tools) == theirs.apply_chat_template(
            [USER], tools=tools, tokenize=False
        )
    assert ours.render([USER], template_name="rag") == "with documents"
    with pytest.raises(InvalidRequest, match="rag, tool_use"):
        ours.render([USER], template_name="other")
    ours.save(tmp_path / "copy")
    assert Tokenizer.load(tmp_path / "copy").render([USER], tools=[WEATHER]) == "with tools"


def test_templates_listed_in_the_configuration(base: Tokenizer, tmp_path: Path) -> None:
    base.save(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
    ours, theirs = Tokenizer.load(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for tools in (None, [WEATHER]):
        assert ours.render([USER], tools=tools) == theirs.apply_chat_template(
            [USER], tools=tools, tokenize=False
        )
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(config | {"chat_template": [{"name": "default"}]})
    )
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        Tokenizer.load(tmp_path)


def test_without_a_template_chat_is_refused(base: Tokenizer, tmp_path: Path) -> None:
    base.save(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.chat_template is None
    with pytest.raises(InvalidRequest, match=r"chat_template\.jinja"):
        tokenizer.apply_chat([USER])
