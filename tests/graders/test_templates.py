"""OpenAI's template language."""

from typing import Any

import pytest

from graders.garbage import GARBAGE
from rondo.base.errors import ConfigError, InvalidRequest
from rondo.graders import Sample
from rondo.graders.definition.templates import NotInOutput, sample_of, template

TOOLS = [{"type": "function", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}]
ITEM = {"answer": "4", "n": 4, "names": ["a", {"first": "b"}], "odd key": True, "none": None, "0": "zero"}


def fill(text: str, completion: str = "", item: Any = ITEM, **metadata: Any) -> str:
    return template(text).fill(Sample("", completion, metadata={"item": item, **metadata}))


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("", ""),
        ("no slot { } }} ", "no slot { } }} "),
        ("{{ item.answer }}", "4"),
        ("{{item.answer}}/{{  item.n  }}", "4/4"),
        ("{{ item.names[0] }} {{ item.names[1].first }} {{ item.names.0 }}", "a b a"),
        ("{{ item['odd key'] }} {{ item.none }} {{ item.0 }}", "true null zero"),
        ("{{ item.names }}", '["a", {"first": "b"}]'),
        ("{{ sample.output_text }}", '{"x": [1, {"y": "é"}]}'),
        ("{{ sample.output_json.x[1].y }}", "é"),
        ("{{ sample.output_json }}", '{"x": [1, {"y": "é"}]}'),
        ("{{ sample.output_tools[0].function.name }}", "weather"),
        ("{{ sample.choices[0].message.content }}", '{"x": [1, {"y": "é"}]}'),
        ("{{ sample.choices[0].finish_reason }}", "stop"),
    ],
)
def test_what_a_template_becomes(text: str, filled: str) -> None:
    assert fill(text, '{"x": [1, {"y": "é"}]}', tool_calls=TOOLS) == filled


def test_an_answer_that_looks_like_a_template_is_text() -> None:
    assert fill("{{ sample.output_text }}", "{{ item.answer }}") == "{{ item.answer }}"


def test_metadata_are_the_item_where_there_is_no_other() -> None:
    sample = Sample("", "", reference="4", metadata={"city": "Lima"})
    assert template("{{ item.city }} {{ item.reference }}").fill(sample) == "Lima 4"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ answer }}", "must begin with `item.`"),
        ("{{ }}", "must begin with"),
        ("{{ item }}", "must begin with"),
        ("{{ items.answer }}", "must begin with"),
        ("{{ item.answer | upper }}", "is no path"),
        ("{{ item.__class__() }}", "is no path"),
        ("{{ sample.output_txt }}", "Did you mean output_text"),
        ("{{ sample.output_audio }}", "a sample has"),
    ],
)
def test_what_is_no_template_says_so_when_it_is_read(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as wrong:
        template(text, "reference")
    assert wrong.value.param == "reference"


@pytest.mark.parametrize(
    "text", ["{{ item.city }}", "{{ item.names[7] }}", "{{ item.answer.x }}", "{{ item.n[0] }}"]
)
def test_what_the_item_lacks_is_the_data_s_mistake(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the item has no"):
        fill(text)


@pytest.mark.parametrize(
    "text", ["{{ sample.output_json.city }}", "{{ sample.output_json[0] }}", "{{ sample.output_tools[0] }}"]
)
def test_what_the_answer_lacks_is_the_policy_s(text: str) -> None:
    for answer in (*GARBAGE, '"a text"', '{"town": 1}'):
        with pytest.raises(NotInOutput):
            fill(text, answer)


def test_attributes_of_python_are_out_of_reach() -> None:
    with pytest.raises(InvalidRequest):
        fill("{{ item.__class__ }}")
    with pytest.raises(InvalidRequest):
        fill("{{ item.answer.__len__ }}")


@pytest.mark.parametrize("answer", GARBAGE)
def test_garbage_is_filled_in_as_it_is(answer: str) -> None:
    assert fill("<{{ sample.output_text }}>", answer) == f"<{answer}>"
    assert sample_of(Sample("", answer))["output_text"] == answer
