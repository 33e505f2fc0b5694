"""A conversation that grows has the tokens that the whole of it has, but for what a model wrote otherwise."""

from pathlib import Path
from typing import Any

import pytest

from rondo.text import Tokenizer, train_bpe
from rondo.text.conversation.answers import ParsedAnswer, ParsedCall, read_answer
from rondo.text.conversation.dialogue import Dialogue, ParsedTurn
from rondo.text.conversation.templates import CHATML
from rondo.text.parsing import choose_dialect

TEMPLATES = {path.stem: path.read_text() for path in (Path(__file__).parent / "templates").glob("*.jinja")}
TEMPLATES["chatml"] = CHATML
ENDS = {
    "chatml": "<|im_end|>",
    "qwen2_5": "<|im_end|>",
    "smollm3": "<|im_end|>",
    "gemma": "<end_of_turn>",
    "llama3": "<|eot_id|>",
    "mistral": "</s>",
    "legacy_llama2": "</s>",
    "phi": "<|end|>",
    "harmony": "<|end|>",
}
SPECIAL = (
    "<pad>",
    "<|start|>",
    "<|message|>",
    "<|channel|>",
    "<|im_start|>",
    "<start_of_turn>",
    "<|user|>",
    "<s>",
    *sorted(set(ENDS.values())),
)

FORGETS = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.reasoning_content and loop.last %}"
    "{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}{%- endif %}"
    "{{- message.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""Thoughts stay in the last message alone, as in Qwen3's."""

USER = {"role": "user", "content": "What is 2 + 2?"}
AGAIN = {"role": "user", "content": "  And twice that?\n"}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Finds", "parameters": {}}}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


@pytest.fixture(scope="module")
def base(corpus: list[str]) -> Tokenizer:
    return train_bpe(
        [*corpus, '<tool_call>\n{"name": "search", "arguments": {"a": 1}}'],
        600,
        SPECIAL,
        bos_token="<s>",
        eos_token="</s>",
    )


def one_by_one(tokenizer: Tokenizer, text: str) -> list[int]:
    """As nobody would encode it, but as a model may sample it."""
    return [id for character in text for id in tokenizer.encode(character, add_special=False)]


@pytest.mark.parametrize("name", sorted(ENDS))
def test_turns_that_are_written_as_the_template_does_have_the_tokens_of_the_whole(
    base: Tokenizer, name: str
) -> None:
    tokenizer, end = base.with_chat_template(TEMPLATES[name]), ENDS[name]
    dialogue = Dialogue(tokenizer)
    messages: list[dict[str, Any]] = [USER]
    prompt = dialogue.begin(messages)
    for turn in range(3):
        messages = [*messages, assistant(f"Four, {turn} — 四."), AGAIN]
        whole = tokenizer.render(messages)
        written = whole[len(prompt.text) : whole.index(end, len(prompt.text)) + len(end)]
        answer = ParsedTurn(tokenizer.encode(written, add_special=False), [f"Four, {turn} — 四."])
        following = dialogue.follow(prompt, answer, messages)
        assert following is not None
        assert following.text == whole
        assert following.ids == tokenizer.encode(whole, add_special=False)
        assert following.ids[: len(prompt.ids)] == prompt.ids
        prompt = following


@pytest.mark.parametrize("kind", ["llama2", "mistral", "gemma", "metaspace", "metaspace_never", "words"])
def test_in_sentencepiece_vocabularies_too(folders: dict[str, Path], kind: str) -> None:
    template = (
        (
            "{%- for m in messages %}{{- 'lazy ' + m.content + '</s>' if m.role == 'user' else m.content + '</s>' }}"
            "{%- endfor %}{%- if add_generation_prompt %}{{- '<tool>' }}{%- endif %}"
        )
        .replace("'lazy '", "'<tool>lazy '")
        .replace("else m.content", "else '<tool>' + m.content")
    )
    tokenizer = Tokenizer.load(folders[kind]).with_chat_template(template)
    dialogue = Dialogue(tokenizer)
    prompt = dialogue.begin([{"role": "user", "content": "The fox"}])
    # The answer's first word may have the blank that such vocabularies put before it, and it may not.
    ids = tokenizer.encode(prompt.text + "brown fox</s>", add_special=False)[len(prompt.ids) :]
    messages = [*prompt.messages, assistant("brown fox"), {"role": "user", "content": "and again"}]
    following = dialogue.follow(prompt, ParsedTurn(ids, ["brown fox"]), messages)
    assert following is not None
    assert following.ids == tokenizer.encode(tokenizer.render(messages), add_special=False)


def test_tokens_stay_as_they_were_sampled(base: Tokenizer) -> None:
    tokenizer = base.with_chat_template(CHATML)
    dialogue = Dialogue(tokenizer)
    prompt = dialogue.begin([USER])
    ids = [*one_by_one(tokenizer, "quick brown"), tokenizer.token_id("<|im_end|>")]
    messages = [USER, assistant("quick brown"), AGAIN]
    following = dialogue.follow(prompt, ParsedTurn(ids, ["quick brown"]), messages)
    assert following is not None
    assert following.ids[len(prompt.ids) : len(prompt.ids) + len(ids)] == ids
    whole = tokenizer.encode(following.text, add_special=False)
    assert following.ids != whole, "tokenized again it would be another prompt"
    assert tokenizer.decode(following.ids, skip_special=False) == following.text


def test_a_call_in_other_blanks_stays_as_it_was_written(base: Tokenizer) -> None:
    tokenizer = base.with_chat_template(TEMPLATES["qwen2_5"])
    dialogue = Dialogue(tokenizer, [SEARCH])
    prompt = dialogue.begin([USER])
    text = '<tool_call>{"arguments":{"a":1},  "name":"search"}</tool_call>'
    ids = tokenizer.encode(f"{text}<|im_end|>", add_special=False)
    said = read_answer(
        text, choose_dialect(TEMPLATES["qwen2_5"]).parser("", [{"name": "search"}]), lambda: "call00001"
    )
    messages = [USER, said.message, {"role": "tool", "content": "found", "tool_call_id": "call00001"}]
    following = dialogue.follow(prompt, ParsedTurn(ids, said.words), messages)
    assert following is not None
    assert following.ids[: len(prompt.ids) + len(ids)] == prompt.ids + ids
    added = tokenizer.decode(following.ids[len(prompt.ids) + len(ids) :], skip_special=False)
    assert (
        added
        == "\n<|im_start|>user\n<tool_response>\nfound\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    # The next turn goes on from there, though the template would write the one before it otherwise.
    more = [*messages, assistant("done"), AGAIN]
    last = dialogue.follow(
        following, ParsedTurn(tokenizer.encode("done<|im_end|>", add_special=False), ["done"]), more
    )
    assert last is not None
    assert last.ids[: len(following.ids)] == following.ids


def test_blanks_that_a_template_trims_stay(base: Tokenizer) -> None:
    tokenizer = base.with_chat_template(TEMPLATES["gemma"])
    dialogue = Dialogue(tokenizer)
    prompt = dialogue.begin([USER])
    ids = tokenizer.encode("  four \n<end_of_turn>", add_special=False)
    following = dialogue.follow(prompt, ParsedTurn(ids, ["  four \n"]), [USER, assistant("  four \n"), AGAIN])
    assert following is not None
    assert following.ids[: len(prompt.ids) + len(ids)] == prompt.ids + ids


def test_a_turn_that_was_cut_off_is_closed_by_the_template(base: Tokenizer) -> None:
    tokenizer = base.with_chat_template(CHATML)
    dialogue = Dialogue(tokenizer)
    prompt = dialogue.begin([USER])
    messages = [USER, assistant("quick bro"), AGAIN]
    following = dialogue.follow(prompt, ParsedTurn(tokenizer.encode("quick bro"), ["quick bro"]), messages)
    assert following is not None
    assert following.ids == tokenizer.encode(tokenizer.render(messages), add_special=False)


def test_a_template_that_forgets_thoughts_has_no_difference(base: Tokenizer) -> None:
    tokenizer = base.with_chat_template(FORGETS)
    dialogue = Dialogue(tokenizer)
    prompt = dialogue.begin([USER])
    said = ParsedAnswer("four", "two and two")
    thought = tokenizer.encode("<think>\ntwo and two\n</think>\nfour<|im_end|>", add_special=False)
    assert dialogue.follow(prompt, ParsedTurn(thought, said.words), [USER, said.message, AGAIN]) is None
    plain = tokenizer.encode("four<|im_end|>", add_special=False)
    assert dialogue.follow(prompt, ParsedTurn(plain, ["four"]), [USER, assistant("four"), AGAIN]) is not None


def test_one_that_never_writes_thoughts_has_none_either(base: Tokenizer) -> None:
    tokenizer = base.with_chat_template(CHATML)
    dialogue = Dialogue(tokenizer)
    prompt = dialogue.begin([USER])
    said = ParsedAnswer("four", "two and two")
    ids = tokenizer.encode("<think>two and two</think>four<|im_end|>", add_special=False)
    assert dialogue.follow(prompt, ParsedTurn(ids, said.words), [USER, said.message, AGAIN]) is None


def test_an_end_that_the_template_does_not_write_has_no_difference(base: Tokenizer) -> None:
    """As where a model ends with the token for the end of a text, and the template writes the one for a turn's."""
    tokenizer = base.with_chat_template(TEMPLATES["harmony"])
    dialogue = Dialogue(tokenizer)
    prompt = dialogue.begin([USER])
    ids = tokenizer.encode("<|channel|>final<|message|>four</s>", add_special=False)
    assert dialogue.follow(prompt, ParsedTurn(ids, ["four"]), [USER, assistant("four"), AGAIN]) is None


def test_arguments_that_are_no_object_become_an_empty_one() -> None:
    call = ParsedCall("search", "[1, 2", "call00001")
    assert call.object is None
    assert ParsedAnswer(calls=[call]).message["tool_calls"][0]["function"]["arguments"] == "{}"
    assert ParsedCall("search", '{"a": 1}').object == {"a": 1}
