import pytest

from rondo.base.errors import InvalidRequest
from rondo.text.conversation.chat import render
from rondo.text.conversation.messages import adapt_messages

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é", "b": [1]}'}}


def adapted(template="", **message):
    return adapt_messages([{"role": "assistant", **message}], template)[0]


def test_arguments_are_an_object_and_a_text():
    message = adapted(tool_calls=[CALL])
    arguments = message["tool_calls"][0]["function"]["arguments"]
    assert arguments == {"a": "é", "b": [1]}
    template = "{% for c in messages[0].tool_calls %}{% set a = c.function.arguments %}"
    for shown in ("{{ a | tojson }}", "{{ '' + a }}", "{{ '' ~ a }}", "{{ a }}", "{{ a + '' }}"):
        text = render(template + shown + "{% endfor %}", [message])
        assert text == '{"a": "é", "b": [1]}'
    assert (
        render(template + "{{ a.b[0] }}{{ a is mapping }}{{ a is string }}{% endfor %}", [message])
        == "1TrueFalse"
    )


@pytest.mark.parametrize("arguments", ["", None, {}, "{}"])
def test_no_arguments(arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    assert adapted(tool_calls=[call])["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("arguments", ["{", "[1]", "null", 5, ["a"]])
def test_what_is_no_object_is_refused(arguments):
    with pytest.raises(InvalidRequest, match="JSON object"):
        adapted(tool_calls=[{"function": {"name": "f", "arguments": arguments}}])


def test_content_beside_calls_is_what_the_template_looks_for():
    assert adapted(tool_calls=[CALL])["content"] == ""
    assert adapted(tool_calls=[CALL], content=None)["content"] == ""
    assert adapted("{% if message['content'] is none %}", tool_calls=[CALL])["content"] is None
    assert adapted("{% if message.content is not none %}", tool_calls=[CALL], content="x")["content"] == "x"
    assert adapted(content="x", tool_calls=None) == {"role": "assistant", "content": "x"}


def test_reasoning_goes_by_the_templates_name():
    assert adapted(content="x", reasoning="r") == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "r",
    }
    assert adapted(content="x", reasoning_content="r")["reasoning_content"] == "r"
    assert adapted(content="x", reasoning="r", reasoning_content="r") == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "r",
    }
    assert adapted("{{ message.thinking }}", content="x", reasoning="r")["thinking"] == "r"
    both = adapted("{{ message.thinking }}", content="x", reasoning="r", tool_calls=[CALL])
    assert (both["thinking"], both["content"]) == ("r\nx", "")
