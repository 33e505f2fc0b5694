"""Chat templates that loop or explode: each ends within its limits, or is known to need a process of its own."""

from pathlib import Path
from typing import Any

import pytest

from rondo.text.conversation.chat import is_bounded, render
from rondo.text.conversation.templates import CHATML
from rondo.text.metered import TooMuchWork, metered
from server import families

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "a" * 50},
]
USUAL = {path.stem: path.read_text() for path in (Path(__file__).parent / "templates").glob("*.jinja")}
USUAL |= {name: text for name, text in vars(families).items() if isinstance(text, str) and "{%" in text}
USUAL["chatml"] = CHATML


def loop(body: str, rounds: int = 90) -> str:
    rounded = f"{{% for i in range({rounds}) %}}{body}{{% endfor %}}"
    return "{% set ns = namespace(x='ab') %}" + rounded + "{{ ns.x|length }}"


METERED = {
    "nested loops": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "endless output": "{% for i in range(9000) %}{{ messages[1].content }}{% endfor %}",
    "branching macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "doubling by +": loop("{% set ns.x = ns.x + ns.x %}"),
    "doubling by ~": loop("{% set ns.x = ns.x ~ ns.x %}"),
    "doubling by a block": loop("{% set block %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = block %}"),
    "doubling by join": loop("{% set ns.x = ns.x|join('-') %}"),
    "doubling by tojson": loop("{% set ns.x = (ns.x ~ '\"')|tojson %}"),
    "a list that doubles": loop("{% set ns.x = ns.x|list + ns.x|list %}"),
    "squared numbers": "{% set n = namespace(x=9) %}{% for i in range(90) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "a repeated text": "{{ 'a' * 9999999999 }}",
    "a format": "{{ '%9999999999d' % 1 }}",
    "constants": "{{ 'ab'|join('0123456789012345')" + "|join('0123456789012345')" * 20 + " }}",
}
APART = {
    "a power": "{{ 9 ** 999999999 }}",
    "a filter that pads": "{{ 'a'|center(9999999999) }}",
    "a method that pads": "{{ 'a'.ljust(9999999999) }}",
    "a method that formats": "{{ '{:9999999999}'.format(1) }}",
    "a replacement that grows": loop("{% set ns.x = ns.x|replace('a', 'aaaaaaaa') %}"),
    "a list in a list": loop("{% set ns.x = [ns.x, ns.x] %}"),
    "a tuple in a tuple": loop("{% set ns.x = (ns.x, ns.x) %}"),
    "a date that pads": "{{ strftime_now('%Y' ~ messages[0].content) }}",
    "an indentation": "{{ messages|tojson(indent=999999999) }}",
    "a rounded number": "{{ 1.5|round(999999999, 'ceil') }}",
    "any filter by its name": "{{ messages|map(messages[0].content)|list }}",
    "any function": "{{ lipsum(n=999999999) }}",
    "a long text stripped of long texts": "{{ messages[0].content.strip(messages[1].content) }}",
    "a template of many megabytes": "{{ 1 }}" * 20_000,
    "an included file": "{% include 'a' %}",
}


@pytest.mark.parametrize("template", METERED.values(), ids=METERED)
def test_templates_that_loop_or_explode_are_ended(template: str) -> None:
    assert is_bounded(template)
    with pytest.raises(TooMuchWork), metered(10_000, steps=20_000, seconds=20):
        render(template, MESSAGES)


@pytest.mark.parametrize("template", APART.values(), ids=APART)
def test_operations_that_cannot_be_interrupted_need_another_process(template: str) -> None:
    assert not is_bounded(template)


@pytest.mark.parametrize("name", USUAL)
def test_the_templates_of_usual_models_are_metered(name: str) -> None:
    assert is_bounded(USUAL[name])


def test_time_ends_a_template_too() -> None:
    with pytest.raises(TooMuchWork), metered(10_000, steps=10**9, seconds=0.01):
        render("{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}", MESSAGES)


def test_without_limits_the_same_is_rendered() -> None:
    template = "{{ '-' * 3 }}{{ 7 % 4 }}{{ messages[0].content ~ 1 }}{{ [1] + [2] }}{{ 'a' + 'b' }}"
    assert render(template, MESSAGES) == "---3hi1[1, 2]ab"
    with metered(1000):
        assert render(template, MESSAGES) == "---3hi1[1, 2]ab"
