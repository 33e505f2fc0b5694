import pytest

from rondo.base.errors import InvalidRequest
from rondo.text.bpe import train_bpe
from rondo.text.conversation.dialogue import Dialogue
from rondo.train.config import TrainConfig
from rondo.train.recipes.pretrain import documents
from rondo.train.recipes.sft import conversation, examples
from server.families import HERMES
from support.tiny import tiny_tokenizer

TALK = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": "reverse abc"},
    {"role": "assistant", "content": "cba"},
    {"role": "user", "content": "and def"},
    {"role": "assistant", "content": "fed"},
]


def learned(document: object) -> list[list[int]]:
    """The runs of tokens with a weight."""
    runs: list[list[int]] = [[]]
    for token, weight in zip(document.tokens, document.weights, strict=True):  # type: ignore[attr-defined]
        if weight:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def test_only_what_the_assistant_says_is_learned_up_to_its_end() -> None:
    tokenizer = tiny_tokenizer()
    (document,) = conversation(tokenizer, TALK)
    assert [tokenizer.decode(run, skip_special=False) for run in learned(document)] == [
        "cba<|im_end|>",
        "fed<|im_end|>",
    ]
    text = tokenizer.render(TALK, add_generation_prompt=False)
    assert tokenizer.decode(document.tokens, skip_special=False) == text


def test_the_prompt_is_tokenized_as_it_will_be_when_serving() -> None:
    tokenizer = tiny_tokenizer()
    (document,) = conversation(tokenizer, TALK[:3])
    prompt = tokenizer.apply_chat(TALK[:2])
    assert list(document.tokens[: len(prompt)]) == prompt
    assert not any(document.weights[: len(prompt)])
    assert document.weights[len(prompt)] == 1.0


def test_a_template_that_rewrites_earlier_turns_gives_a_document_a_turn() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}:"
        "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant:<think></think>{% endif %}"
    )
    tokenizer = tiny_tokenizer().with_chat_template(template)
    talk = conversation(tokenizer, TALK)
    assert [[tokenizer.decode(run) for run in learned(document)] for document in talk] == [["cba"], ["fed"]]


@pytest.mark.parametrize("arguments", ['{"sum": "3*4"}', {"sum": "3*4"}], ids=["as a text", "as an object"])
def test_a_call_is_learned_as_a_conversation_with_the_model_has_it(arguments: object) -> None:
    """Arguments are a text in OpenAI's shape and an object in Hugging Face's: templates write objects."""
    tokenizer = train_bpe(["work out the sum"], 300, chat_template=HERMES)
    call = {"id": "1", "type": "function", "function": {"name": "calculate", "arguments": arguments}}
    tools = [{"type": "function", "function": {"name": "calculate", "parameters": {}}}]
    asked = {"role": "user", "content": "3*4?"}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": "1", "content": "12"}
    (document,) = conversation(tokenizer, [asked, said, told, {"role": "assistant", "content": "12"}], tools)
    text = tokenizer.decode(document.tokens, skip_special=False)
    assert '{"name": "calculate", "arguments": {"sum": "3*4"}}' in text
    assert text.startswith(Dialogue(tokenizer, tools).begin([asked, said, told]).text)
    learned = [id for id, weight in zip(document.tokens, document.weights, strict=True) if weight]
    assert "12?" not in tokenizer.decode(learned)


def test_a_template_without_a_generation_prompt_is_an_error() -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}{{ 'now' if add_generation_prompt }}"
    with pytest.raises(InvalidRequest, match="continuation of its generation prompt"):
        conversation(tiny_tokenizer().with_chat_template(template), TALK)


def test_prompts_and_completions_and_plain_text() -> None:
    tokenizer = tiny_tokenizer()
    pair, text = examples(tokenizer, [{"prompt": "ab", "completion": "cd"}, {"text": "xyz"}], 64)
    assert tokenizer.decode(learned(pair)[0], skip_special=False) == "cd<|im_end|>"
    assert tokenizer.decode(text.tokens, skip_special=False) == "xyz<|im_end|>"
    assert all(text.weights)


def test_an_example_that_is_too_long_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"example 2 has \d+ tokens, more than max_length=16"):
        examples(tiny_tokenizer(), [{"text": "short"}, {"text": "z" * 99}], 16)


def test_pretraining_documents_end_once() -> None:
    tokenizer = tiny_tokenizer()
    plain, chat = documents(tokenizer, [{"text": "ab"}, {"messages": TALK}])
    assert tokenizer.decode(plain, skip_special=False) == "ab<|im_end|>"
    assert tokenizer.decode(chat, skip_special=False).count("<|im_start|>") == 5


def test_a_document_must_fit_into_a_microbatch() -> None:
    with pytest.raises(ValueError, match="max_length must not exceed tokens_per_microbatch"):
        TrainConfig(max_length=100, tokens_per_microbatch=50)
