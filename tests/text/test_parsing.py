"""Whatever a model writes, and however it comes in pieces, the parts are the same; nothing is lost."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rondo.base.errors import ConfigError
from rondo.text.parsing import ArgumentsDelta, Call, Content, Part, Reasoning, ToolCallFormat, choose_dialect
from rondo.text.parsing.scan import held_back
from text import recorded, recorded_tagged
from text.recorded import TOOLS, joined

KINDS = {
    "hermes": (ToolCallFormat("hermes"), "", recorded.HERMES),
    "qwen3_coder": (ToolCallFormat("qwen3_coder"), "", recorded_tagged.QWEN_CODER),
    "llama3_json": (ToolCallFormat("llama3_json"), "", recorded.LLAMA3),
    "mistral": (ToolCallFormat("mistral"), "", recorded.MISTRAL),
    "deepseek_v3": (ToolCallFormat("deepseek_v3"), "", recorded.DEEPSEEK),
    "deepseek_v32": (ToolCallFormat("deepseek_v32"), "", recorded_tagged.DSML),
    "minimax_m2": (ToolCallFormat("minimax_m2"), "", recorded_tagged.MINIMAX),
    "seed_oss": (ToolCallFormat("seed_oss"), "", recorded_tagged.SEED_OSS),
    "glm45": (ToolCallFormat("glm45"), "", recorded_tagged.GLM),
    "kimi_k2": (ToolCallFormat("kimi_k2"), "", recorded.KIMI),
    "pythonic": (ToolCallFormat("pythonic"), "", recorded.PYTHONIC),
    "olmo3": (ToolCallFormat("olmo3"), "", recorded.OLMO3),
    "granite": (ToolCallFormat("granite"), "", recorded.GRANITE),
    "phi4_mini_json": (ToolCallFormat("phi4_mini_json"), "", recorded.PHI4),
    "jamba": (ToolCallFormat("jamba"), "", recorded.JAMBA),
    "llama4_json": (ToolCallFormat("llama4_json"), "", recorded.LLAMA4),
    "openai": (ToolCallFormat("openai", "openai_gptoss"), "", recorded.HARMONY),
    "qwen3": (ToolCallFormat("hermes", "qwen3"), "<|im_start|>assistant\n", recorded.THINK),
    "qwen3-opened": (ToolCallFormat("hermes", "qwen3"), "<|im_start|>assistant\n<think>\n", recorded.OPENED),
    "deepseek_r1": (ToolCallFormat("hermes", "deepseek_r1"), "<｜Assistant｜>", recorded.OPENED),
    "magistral": (ToolCallFormat("mistral", "mistral"), "[/INST]", recorded.MISTRAL_THINK),
}
ALL = [(name, text) for name, (_, _, texts) in KINDS.items() for text, _ in texts]


def parse(kind: str, pieces: list[str]) -> list[Part]:
    """All parts, neighbouring texts joined, and calls with their arguments."""
    dialect, prompt, _ = KINDS[kind]
    parser = dialect.parser(prompt, TOOLS)
    assert parser is not None
    return joined([part for piece in pieces for part in parser.feed(piece)] + parser.finish())


def shown(parts: list[Part]) -> list:
    def one(part):
        match part:
            case Content(text):
                return text
            case Reasoning(text):
                return "r:" + text
            case Call(name, arguments):
                return (name, loaded(arguments))

    def loaded(arguments):
        try:
            return json.loads(arguments)
        except ValueError:
            return arguments

    return [one(part) for part in parts]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [(name, text, expected) for name, (_, _, texts) in KINDS.items() for text, expected in texts],
)
def test_recorded_answers(kind, text, expected):
    assert shown(parse(kind, [text])) == expected


def test_there_are_ten_of_each():
    assert all(len(texts) >= 10 for _, _, texts in KINDS.values())


@pytest.mark.parametrize(("kind", "text"), ALL)
def test_the_cut_does_not_matter(kind, text):
    whole = parse(kind, [text])
    for at in range(len(text) + 1):
        assert parse(kind, [text[:at], text[at:]]) == whole, (text[:at], text[at:])
    assert parse(kind, list(text)) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_every_beginning_of_an_answer_can_be_its_end(kind):
    """Where it was cut off, letter by letter gives what the whole gives, and no letter of content goes."""
    for at, (text, _) in enumerate(KINDS[kind][2]):
        for end in range(at % 3, len(text), 3):
            assert parse(kind, list(text[:end])) == parse(kind, [text[:end]])


FRAGMENTS = sorted(
    {
        *(marker for dialect, _, _ in KINDS.values() for marker in dialect.markers),
        *(
            "</tool_call>",
            "</function>",
            "<function=now>",
            "<parameter=a>",
            "</parameter>",
            "<think>",
            "</think>",
        ),
        *(
            '{"name": "now", "arguments": {}}',
            '{"name": "now", "parameters": {',
            '"',
            "{",
            "}",
            "[",
            "]",
            "\\",
            ";",
        ),
        *(" ", "\n", "a", "now", "function", "to=functions.now", "commentary", "```json\n", "```"),
    }
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=14))
def test_anything_at_all(kind, pieces):
    """No text makes a parser fail, or read it otherwise in pieces."""
    text = "".join(pieces)
    whole = parse(kind, [text])
    assert parse(kind, pieces) == whole
    assert parse(kind, list(text)) == whole
    if not any(isinstance(part, Call) for part in whole) and kind in (
        "hermes",
        "llama3_json",
        "mistral",
        "deepseek_v3",
    ):
        assert "".join(part.text for part in whole) == text


@pytest.mark.parametrize("text", [text for text, _ in recorded.HERMES])
def test_without_tools_nothing_is_a_call(text):
    assert ToolCallFormat("hermes").without_calls().parser("") is None
    parser = ToolCallFormat("hermes", "qwen3").without_calls().parser("")
    assert shown(parser.feed(text) + parser.finish()) == [text]


def test_a_long_call_takes_no_longer_a_letter_than_a_short_one():
    text = "[TOOL_CALLS]write_file[ARGS]" + json.dumps({"text": 'a "quoted" {word} [and] \\ more, ' * 3000})
    assert shown(parse("mistral", [text[i : i + 3] for i in range(0, len(text), 3)])) == [
        ("write_file", json.loads(text.partition("[ARGS]")[2]))
    ]


@pytest.mark.parametrize(
    ("template", "calls", "reasoning"),
    [
        ("{{ messages }}", None, None),
        ('{{- \'<tool_call>\\n{"name": "\' }}', "hermes", None),
        ("<tool_call> {% if enable_thinking is false %}<think>\n\n</think>{% endif %}", "hermes", "qwen3"),
        ("<tool_call>\n<function=example_function_name>\n<parameter=a>", "qwen3_coder", None),
        ("{{- '<|python_tag|>' + tool_call.name + '.call(' }}", "llama3_json", None),
        ("[TOOL_CALLS] {{ tool_call }}[ARGS]", "mistral", None),
        ("[TOOL_CALLS][THINK]", "mistral", "mistral"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜> content.split('</think>')[-1]", "deepseek_v3", "qwen3"),
        ("<|start|>assistant<|channel|>analysis", "openai", "openai_gptoss"),
        ('"<｜DSML｜function_calls>" "</think>"', "deepseek_v32", "qwen3"),
        ("<tool_call>{{ name }}\n<arg_key>{{ key }}</arg_key>", "glm45", None),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi_k2", None),
        ("<minimax:tool_call><invoke name=", "minimax_m2", None),
        ("<seed:tool_call><function=</seed:think>", "seed_oss", "seed_oss"),
        ("<|python_start|> [func_name1(", "llama4_pythonic", None),
        ('<|python_start|> {"name": function name, "parameters": x}', "llama3_json", None),
        (None, None, None),
    ],
)
def test_the_template_tells_the_dialect(template, calls, reasoning):
    assert choose_dialect(template) == ToolCallFormat(calls, reasoning)
    assert choose_dialect(template, "hermes", "none") == ToolCallFormat("hermes", None)


def test_a_name_that_is_none():
    with pytest.raises(ConfigError, match="hermes"):
        choose_dialect("", "hermse")
    with pytest.raises(ConfigError, match="qwen3"):
        choose_dialect("", reasoning="qwen4")


@given(text=st.text("ab<", max_size=12), marker=st.text("ab<", min_size=1, max_size=6))
def test_what_is_held_back_is_the_longest_end_that_may_become_a_marker(text, marker):
    longest = max(n for n in range(len(marker)) if n == 0 or text.endswith(marker[:n]))
    assert held_back(text, [marker]) == longest


WEATHER = '{"city": "Paris", "at": {"lat": [48.85, "N"]}}'
STREAMED = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>',
    "llama3_json": '{"name": "get_weather", "parameters": %s}',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": %s}]',
    "deepseek_v3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n%s\n```<｜tool▁call▁end｜>",
    "kimi_k2": "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>%s<|tool_call_end|>",
    "openai": "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>%s<|call|>",
}


@pytest.mark.parametrize("kind", STREAMED)
def test_arguments_are_given_as_they_are_written(kind):
    """The name first, and then each letter in the moment when it comes."""
    text = STREAMED[kind] % WEATHER
    parser = KINDS[kind][0].parser("", TOOLS)
    said = [parser.feed(letter) for letter in text]
    start = text.index(WEATHER)
    assert [parts[:1] for parts in said[: start + 2] if parts] == [
        [Call("get_weather", "", "functions.get_weather:0" if kind == "kimi_k2" else None)]
    ]
    assert said[start + 1][1:] == [ArgumentsDelta(WEATHER[:2])]
    assert said[start + 2 : start + len(WEATHER)] == [[ArgumentsDelta(letter)] for letter in WEATHER[2:]]
    assert not any(said[start + len(WEATHER) :])
    assert parser.finish() == []
