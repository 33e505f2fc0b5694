from pathlib import Path

import pytest
import transformers

from rondo.base.errors import InvalidRequest
from rondo.text.bpe import train_bpe
from rondo.text.conversation.dialogue import Dialogue
from rondo.train.config import TrainConfig
from rondo.train.recipes.pretrain import documents
from rondo.train.recipes.sft import conversation, examples, tokenize
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


LONG = [{"text": "short"}, {"text": "z" * 99}, {"text": "z" * 50}]


def test_the_longest_example_above_the_maximum_length_is_named() -> None:
    said = (
        r"2 of 3 records have more than train\.max_length=16 tokens; the longest has 100: record 2\. .*=skip"
    )
    with pytest.raises(InvalidRequest, match=said):
        examples(tiny_tokenizer(), LONG, 16)
    with pytest.raises(InvalidRequest, match=r"the longest has 100: x\.jsonl, line 2"):
        tokenize(tiny_tokenizer(), LONG, 16, place=lambda index: f"x.jsonl, line {index + 1}")


def test_over_long_examples_are_skipped_or_truncated() -> None:
    tokenizer = tiny_tokenizer()
    skipped = tokenize(tokenizer, LONG, 16, "skip")
    assert (len(skipped.documents), skipped.skipped, skipped.truncated, skipped.longest) == (1, 2, 0, 100)
    cut = tokenize(tokenizer, LONG, 16, "truncate")
    assert [len(document.tokens) for document in cut.documents[1:]] == [16, 16]
    assert (cut.skipped, cut.truncated) == (0, 2)
    prompt = [{"prompt": "z" * 50, "completion": "answer"}, LONG[0]]
    unlearned = tokenize(tokenizer, prompt, 16, "truncate")
    assert (len(unlearned.documents), unlearned.skipped) == (1, 1)
    with pytest.raises(InvalidRequest, match=r"every example has more than train\.max_length=16"):
        tokenize(tokenizer, LONG[1:], 16, "skip")


def test_a_message_of_weight_0_is_context() -> None:
    tokenizer = tiny_tokenizer()
    talk = [{**message, "weight": 0} if message["content"] == "cba" else message for message in TALK]
    (document,) = conversation(tokenizer, talk)
    assert [tokenizer.decode(run) for run in learned(document)] == ["fed"]
    assert document.tokens == conversation(tokenizer, TALK)[0].tokens


GENERATION = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_the_loss_mask_is_transformers_mask_of_the_assistant(tmp_path: Path) -> None:
    """TRL's `assistant_only_loss` uses this mask."""
    tokenizer = tiny_tokenizer().with_chat_template(GENERATION)
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    found = theirs.apply_chat_template(TALK, return_dict=True, return_assistant_tokens_mask=True)
    (document,) = conversation(tokenizer, TALK)
    assert document.tokens == found["input_ids"]
    assert document.weights == found["assistant_masks"]


def test_pretraining_documents_end_once() -> None:
    tokenizer = tiny_tokenizer()
    plain, chat = documents(tokenizer, [{"text": "ab"}, {"messages": TALK}])
    assert tokenizer.decode(plain, skip_special=False) == "ab<|im_end|>"
    assert tokenizer.decode(chat, skip_special=False).count("<|im_start|>") == 5


def test_a_document_must_fit_into_a_microbatch() -> None:
    with pytest.raises(ValueError, match="max_length must not exceed tokens_per_microbatch"):
        TrainConfig(max_length=100, tokens_per_microbatch=50)
