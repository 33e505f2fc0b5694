"""Detection and conversion of the formats of published data sets, on sample files with their shapes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.base.errors import InvalidRequest
from rondo.data.input.conversion import RecordConverter, is_plain_chat
from rondo.data.input.detection import FORMAT_NAMES, FORMATS, NAMES, detect, detect_as
from rondo.data.input.formats import Form
from rondo.data.input.records import check_record
from rondo.data.input.sources import read_records, read_source

SAMPLES = Path(__file__).parent / "samples"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


BRIEF = {"role": "system", "content": "Be brief."}
PAIR = {"messages": [user("2 + 3?")], "chosen": [assistant("5")], "rejected": [assistant("6")]}
EXPECTED: dict[str, tuple[str, list[Any]]] = {
    "alpaca.json": (
        "Alpaca: instruction, output, input, system, history",
        [
            {"messages": [user("Name the capital of Peru."), assistant("Lima")]},
            {
                "messages": [
                    {"role": "system", "content": "Answer with one word."},
                    user("Translate to French. hello"),
                    assistant("salut"),
                    user("Translate to French.\ngood morning"),
                    assistant("bonjour"),
                ]
            },
        ],
    ),
    "dolly.csv": (
        "question/answer: instruction, response, context",
        [
            {"messages": [user('Who wrote "Don Quixote"?'), assistant("Miguel de Cervantes")]},
            {"messages": [user("How many moons has Mars?\nMars has\ntwo moons."), assistant("Two")]},
        ],
    ),
    "gsm8k.tsv": (
        "question/answer: question, answer",
        [{"messages": [user("2 + 3?"), assistant("5")]}, {"messages": [user("4 + 4?"), assistant("8")]}],
    ),
    "prompt_completion.jsonl": (
        "prompt/completion: prompt, completion",
        [
            {"prompt": "2 + 3 =", "completion": " 5"},
            {"prompt": "The capital of Peru is", "completion": " Lima"},
        ],
    ),
    "prompt_completion_messages.jsonl": (
        "prompt/completion: prompt, completion",
        [{"messages": [user("2 + 3?"), assistant("5", weight=0), user("4 + 4?"), assistant("8")]}],
    ),
    "preference.jsonl": (
        "preference pair: prompt, chosen, rejected",
        [{"prompt": "2 + 3?", "chosen": "5", "rejected": "6"}],
    ),
    "ultrafeedback.jsonl": ("preference pair: prompt, chosen, rejected", [PAIR]),
    "sharegpt_pairs.json": ("preference pair: conversations, chosen, rejected", [PAIR]),
    "hh.jsonl": (
        "preference pair: chosen, rejected",
        [
            {
                "messages": [user("Hello"), assistant("Hi, how can I help?"), user("2 + 3?")],
                "chosen": [assistant("5")],
                "rejected": [assistant("Go away")],
            }
        ],
    ),
    "kto.jsonl": (
        "labelled answer: prompt, completion, label",
        [
            {"messages": [user("2 + 3?")], "completion": [assistant("5")], "label": True},
            {"messages": [user("4 + 4?")], "completion": [assistant("9")], "label": False},
        ],
    ),
    "kto_llamafactory.json": (
        "labelled answer: messages, kto_tag",
        [{"messages": [user("2 + 3?")], "completion": [assistant("5")], "label": True}],
    ),
    "text.jsonl": (
        "plain text: text",
        [{"text": "Lima is the capital of Peru.", "url": "https://example.org"}],
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_sample_file(name: str) -> None:
    found = read_source(SAMPLES / name)
    form, records = EXPECTED[name]
    assert found.format == form
    assert found.records == records


def test_chat_records_stay_as_they_are() -> None:
    lines = (SAMPLES / "chat.jsonl").read_text().splitlines()
    found = read_source(SAMPLES / "chat.jsonl")
    assert found.format == "OpenAI chat: messages, tools"
    assert found.records == list(map(json.loads, lines))


def test_sharegpt_has_system_tools_and_calls() -> None:
    found = read_source(SAMPLES / "sharegpt.json")
    assert found.format == "ShareGPT: conversations, system, tools"
    plain, called = found.records
    assert plain == {"messages": [BRIEF, user("What is 2 + 3?"), assistant("5")]}
    assert [message["role"] for message in called["messages"]] == ["user", "assistant", "tool", "assistant"]
    (call,) = called["messages"][1]["tool_calls"]
    assert call == {"type": "function", "function": {"name": "weather", "arguments": {"city": "Lima"}}}
    assert called["tools"][0]["function"]["name"] == "weather"


@pytest.mark.parametrize("name", FORMATS)
def test_the_example_of_each_format_is_detected_as_it(name: str) -> None:
    record = json.loads(FORMATS[name].example)
    found = detect(record)
    assert found is not None
    assert found.name == name
    assert RecordConverter()(record)[1] == ""


VALUES = st.none() | st.booleans() | st.text(max_size=5) | st.integers(0, 9)
TURNS = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "from", "value", "tool_calls"]), VALUES, max_size=3),
    max_size=3,
)
ANY = st.dictionaries(st.sampled_from(sorted(NAMES)) | st.text("abc", max_size=3), VALUES | TURNS, max_size=6)


@given(ANY)
def test_any_object_is_converted_to_a_valid_record_or_has_a_problem(record: dict[str, Any]) -> None:
    converted, problem = RecordConverter()(dict(record))
    assert (converted is None) == bool(problem)
    if converted is not None:
        assert check_record(converted) is None


@given(ANY, st.randoms())
def test_detection_depends_on_neither_order_nor_unknown_fields(record: dict[str, Any], random: Any) -> None:
    names = list(record)
    random.shuffle(names)
    other = {name: record[name] for name in names} | {"unrelated": 1}
    found, again = detect(record), detect(other)
    assert (found and found.name) == (again and again.name)
    if found and again:
        assert set(found.fields) == set(again.fields)
        assert detect_as(found.name, record) == found


@given(ANY)
def test_a_converted_record_stays_unchanged_when_it_is_read_again(record: dict[str, Any]) -> None:
    converted, _ = RecordConverter()(dict(record))
    if converted is not None:
        assert RecordConverter()(dict(converted)) == (converted, "")


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


ALPACA = {"instruction": "a", "input": "b", "output": "c"}


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        (
            [ALPACA, {"conversations": [{"from": "human", "value": "x"}]}],
            "line 2: this record is ShareGPT: conversations; the file began with Alpaca: instruction, input, output",
        ),
        (
            [ALPACA, {"instruction": "a"}],
            'line 2: no "output" in this record; its fields are instruction. The format is Alpaca',
        ),
        (
            [{"instruciton": "a", "output": "b"}],
            'line 1: no "instruction" .* fields are instruciton, output. The nearest format is Alpaca: .*'
            "--field instruction=instruciton",
        ),
        ([{"body": "a"}], "line 1: no format has these fields: body. .*--field text=body"),
        ([{"conversations": [{"from": "robot", "value": "x"}]}], r'conversations\[0\]: "from" is .robot.'),
        ([{"question": "a", "answer": None}], '"answer" must be a string, not null'),
        ([{"instruction": "a", "output": "b", "history": ["x"]}], '"history" must be a list of pairs'),
        ([{"messages": [user("a"), assistant("b")], "tools": "["}], '"tools" must be a list'),
        ([{"prompt": "a", "completion": "b", "label": "maybe"}], '"label" must be true or false'),
        ([{"chosen": "a", "rejected": "b"}], "there is no prompt"),
        (
            [{"chosen": [user("a"), assistant("b")], "rejected": [user("x"), assistant("c")]}],
            "differ before their last turn",
        ),
        ([{"messages": [user("a"), assistant("b", weight=0)]}], "no assistant message to learn"),
    ],
)
def test_a_record_that_cannot_be_read_is_explained(
    tmp_path: Path, records: list[dict[str, Any]], problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        read_records(write(tmp_path / "x.jsonl", *records))


def test_the_format_and_the_fields_can_be_given(tmp_path: Path) -> None:
    record = {"text": "whole", "question": "q", "answer": "a"}
    path = write(tmp_path / "x.jsonl", record)
    assert read_records(path) == [{"messages": [user("q"), assistant("a")]}]
    assert read_records(path, Form(format="text"))[0]["text"] == "whole"
    with pytest.raises(InvalidRequest, match='no "instruction" and no "output"'):
        read_records(path, Form(format="alpaca"))
    named = Form({"instruction": "question", "output": "answer"})
    assert read_source(path, named).format == "Alpaca: instruction, output"


def test_the_label_of_a_classified_record_judges_no_answer(tmp_path: Path) -> None:
    talk = {"messages": [user("q"), assistant("a")]}
    assert read_records(write(tmp_path / "x.jsonl", {**talk, "label": "maths"})) == [talk]
    assert read_records(write(tmp_path / "y.jsonl", {"text": "t", "label": 3})) == [{"text": "t"}]
    (judged,) = read_records(write(tmp_path / "z.jsonl", {**talk, "label": False}))
    assert judged == {"messages": [user("q")], "completion": [assistant("a")], "label": False}


def test_each_file_of_a_folder_has_its_own_format(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", ALPACA)
    write(tmp_path / "b.jsonl", {"text": "t"}, {"text": "u"})
    found = read_source(tmp_path)
    assert found.format == "Alpaca: instruction, input, output; plain text: text"
    assert found.place(0).endswith("a.jsonl, line 1")
    assert found.place(2).endswith("b.jsonl, line 2")


def test_the_names_of_the_formats_are_those_of_the_table() -> None:
    assert set(FORMATS) == set(FORMAT_NAMES)


PLAIN_TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "tool", "function", "x"]),
            "content": st.text(max_size=3),
        }
    )
    | st.dictionaries(
        st.sampled_from(["role", "content", "from", "weight", "function_call"]), VALUES, max_size=3
    ),
    max_size=3,
)
CHATS = st.builds(
    lambda turns, more: {"messages": turns, **more},
    PLAIN_TURNS,
    st.dictionaries(
        st.sampled_from(sorted(NAMES - {"messages"})) | st.text("abc", max_size=3), VALUES, max_size=1
    ),
)


@given(CHATS)
def test_a_chat_record_that_is_not_converted_is_what_its_conversion_returns(record: dict[str, Any]) -> None:
    if is_plain_chat(record):
        assert RecordConverter()(json.loads(json.dumps(record))) == (record, "")
