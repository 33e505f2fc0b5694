"""Whatever a model says within the grammar of a call reads back as that call."""

import json
import random

import pytest
from llguidance import LLMatcher, LLTokenizer

from rondo.text.parsing import Call, Content, Reasoning, ToolCallFormat
from text.recorded import joined

SPECIAL = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "<|python_tag|>")
SPECIAL += ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
SPECIAL += ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
SPECIAL += ("<｜tool▁sep｜>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
SPECIAL += ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
TOKENS = [bytes([byte]) for byte in range(256)]
TOKENS += [token.encode() for token in (*SPECIAL, "<think>", "</think>", "<tool_call>", "</tool_call>")]
IDS = {token: index for index, token in enumerate(TOKENS)}
END = len(TOKENS)

TOOLS = [
    {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "wind": {"type": "boolean"},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    {"name": "now", "parameters": None},
]
FORM = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}

DIALECTS = {
    "hermes": (ToolCallFormat("hermes"), "", ""),
    "hermes-thinking": (ToolCallFormat("hermes", "qwen3"), "", ""),
    "hermes-opened": (ToolCallFormat("hermes", "qwen3"), "", "<think>\n"),
    "r1": (ToolCallFormat("hermes", "deepseek_r1"), "", ""),
    "qwen3_coder": (ToolCallFormat("qwen3_coder"), "", ""),
    "llama3_json": (ToolCallFormat("llama3_json"), "", ""),
    "mistral": (ToolCallFormat("mistral", "mistral"), "", ""),
    "mistral-named": (ToolCallFormat("mistral"), "[ARGS]", ""),
    "deepseek_v3": (ToolCallFormat("deepseek_v3"), "```json", ""),
    "deepseek_v31": (ToolCallFormat("deepseek_v31", "qwen3"), "", "<think>"),
    "deepseek_v32": (ToolCallFormat("deepseek_v32"), "", ""),
    "glm45": (ToolCallFormat("glm45"), "", ""),
    "kimi_k2": (ToolCallFormat("kimi_k2"), "", ""),
    "minimax_m2": (ToolCallFormat("minimax_m2"), "", ""),
    "seed_oss": (ToolCallFormat("seed_oss"), "", ""),
    "pythonic": (ToolCallFormat("pythonic"), "", ""),
    "olmo3": (ToolCallFormat("olmo3"), "", ""),
    "granite": (ToolCallFormat("granite"), "", ""),
    "phi4_mini_json": (ToolCallFormat("phi4_mini_json"), "", ""),
    "jamba": (ToolCallFormat("jamba"), "", ""),
    "openai": (ToolCallFormat("openai", "openai_gptoss"), "", ""),
}


class Words:
    is_tokenizer_wrapper = True
    bos_token_id = None
    tokens = [*TOKENS, b"<end>"]  # noqa: RUF012 (as llguidance looks for it)
    special_token_ids = [*(IDS[token.encode()] for token in SPECIAL), END]  # noqa: RUF012
    eos_token_id = END

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


@pytest.fixture(scope="module")
def words() -> LLTokenizer:
    return LLTokenizer(Words(), eos_token=[END])


def special_id(text: str) -> int | None:
    return IDS[text.encode()] if text in SPECIAL else None


def matcher_of(words, kind, tools, form=None, **options) -> LLMatcher:
    dialect, template, prompt = DIALECTS[kind]
    lark = dialect.grammar(special_id, template, dialect.thought(prompt), tools, form, **options)
    grammar = LLMatcher.grammar_from_lark(lark)
    assert LLMatcher.validate_grammar(grammar) == ""
    return LLMatcher(words, grammar)


VALUE_ENDS = [b"\n</parameter>\n", b"</parameter>\n", "</｜DSML｜parameter>\n".encode(), b"</arg_value>\n"]
"""What no walk would find by itself."""


def babble(matcher: LLMatcher, rng: random.Random) -> str:
    """A random walk through the grammar that leans towards ends."""
    said = b""
    for _ in range(3000):
        end = rng.choice(VALUE_ENDS)
        if rng.random() < 0.1 and matcher.validate_tokens(list(end)) == len(end):
            matcher.consume_tokens(list(end))
            said += end
            continue
        allowed = [i for i, bias in enumerate(matcher.compute_logit_bias()) if bias]
        likely = [i for i in allowed if i >= 256 or TOKENS[i] in b'"}]\n']
        token = rng.choice(likely if likely and rng.random() < 0.5 else allowed)
        if token == END:
            return said.decode()
        if 128 <= token < 256 and min(allowed) < 128:
            continue  # Part of a character, and not of a marker.
        assert matcher.consume_token(token)
        said += TOKENS[token]
    raise AssertionError(f"it does not end: {said[-200:]!r}")


def read(kind, text, tools):
    dialect, _, prompt = DIALECTS[kind]
    parser = dialect.parser(prompt, tools)
    return joined(parser.feed(text) + parser.finish())


@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize("seed", range(4))
def test_what_must_be_calls_is_calls(words, kind, seed):
    text = babble(matcher_of(words, kind, TOOLS), random.Random(seed))
    parts = read(kind, text, TOOLS)
    calls = [part for part in parts if isinstance(part, Call)]
    assert calls, text
    assert all(isinstance(part, Call | Reasoning) for part in parts), (text, parts)
    for call in calls:
        arguments = json.loads(call.arguments)
        assert call.name in ("get_weather", "now")
        if call.name == "now":
            assert arguments == {}
        else:
            assert isinstance(arguments["city"], str)
            assert set(arguments) <= {"city", "days", "wind"}
            assert 1 <= arguments.get("days", 1) <= 9


@pytest.mark.parametrize("kind", DIALECTS)
def test_one_function_once(words, kind):
    for seed in range(3):
        text = babble(matcher_of(words, kind, TOOLS[1:], parallel=False), random.Random(seed))
        (call,) = [part for part in read(kind, text, TOOLS) if isinstance(part, Call)]
        assert (call.name, json.loads(call.arguments)) == ("now", {})


@pytest.mark.parametrize("kind", DIALECTS)
def test_calls_or_a_form(words, kind):
    kinds = set()
    for seed in range(12):
        text = babble(matcher_of(words, kind, TOOLS, FORM), random.Random(seed))
        parts = [part for part in read(kind, text, TOOLS) if not isinstance(part, Reasoning)]
        kinds.add(type(parts[0]))
        if isinstance(parts[0], Content):
            assert json.loads("".join(part.text for part in parts))["a"] in (1, 2)
    assert kinds == {Call, Content}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            "hermes",
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>',
        ),
        (
            "hermes-thinking",
            '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        ),
        ("hermes-opened", 'Hm.\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n"
            "</parameter>\n</function>\n</tool_call>",
        ),
        ("llama3_json", '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}'),
        (
            "mistral",
            '[THINK]Hm.[/THINK][TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        ),
        ("mistral-named", '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'),
        (
            "deepseek_v3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            '{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        ),
        (
            "deepseek_v31",
            "Hm.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "openai",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
            '<|constrain|>json<|message|>{"city": "Paris"}',
        ),
    ],
)
def test_what_models_write_is_in_the_grammar(words, kind, text):
    matcher = matcher_of(words, kind, TOOLS)
    tokens = []
    while text:
        token = next(
            (t for t in (*SPECIAL, "<think>", "</think>", "<tool_call>") if text.startswith(t)), None
        )
        tokens += [IDS[token.encode()]] if token else text[0].encode()
        text = text[len(token) if token else 1 :]
    assert matcher.validate_tokens([*tokens, END]) == len(tokens) + 1
