"""The same of families that write a tag for each argument: see recorded.py."""
# ruff: noqa: E501 (texts are whole, as they come)

from text.recorded import PARIS, Recorded, rewritten

QWEN_CODER: Recorded = [
    ("No tools needed.\n", ["No tools needed.\n"]),
    (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", PARIS)],
    ),
    (
        "Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n<parameter=wind>\nTrue\n</parameter>\n</function>\n</tool_call>",
        ["Let me see.", ("get_weather", PARIS | {"days": 3, "wind": True})],
    ),
    (
        '<tool_call>\n<function=get_weather>\n<parameter=at>\n{"lat": 1.5}\n</parameter>\n<parameter=tags>\n["a", "b"]\n'
        "</parameter>\n<parameter=units>\nnull\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", {"at": {"lat": 1.5}, "tags": ["a", "b"], "units": None})],
    ),
    ("<tool_call>\n<function=now>\n</function>\n</tool_call>\n", [("now", {})]),
    (
        "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>\n"
        "Paris\n</parameter>\n</function>\n</tool_call>",
        [("now", {}), ("get_weather", PARIS)],
    ),
    (
        "<tool_call>\n<function=write_file>\n<parameter=path>\na.html\n</parameter>\n<parameter=text>\n<p>\n  12 </parameter> x\n"
        "</p>\n\n</parameter>\n</function>\n</tool_call>",
        [("write_file", {"path": "a.html", "text": "<p>\n  12 </parameter> x\n</p>\n"})],
    ),
    (
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", PARIS)],
    ),
    (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n7\n</parameter>\n</function>",
        [("get_weather", {"city": "7"})],
    ),
    (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
        ["<tool_call>\n<function=get_weather>\n<parameter=city>\nPar"],
    ),
    (
        "<tool_call>\n<function=now>\noops\n</function>\n</tool_call>",
        ["<tool_call>\n<function=now>\noops\n</function>\n</tool_call>"],
    ),
    (
        "<tool_call>\n<function=get_weather>\n<parameter=days>\nthree\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", {"days": "three"})],
    ),
    (
        "<tool_call>\n<function=other>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        [("other", {"a": "1"})],
    ),
]


SEED_OSS = rewritten(QWEN_CODER, ("tool_call>", "seed:tool_call>"))
MINIMAX = rewritten(
    QWEN_CODER,
    ("tool_call>", "minimax:tool_call>"),
    ("</function>", "</invoke>"),
    *(
        (f"<function={name}>", f'<invoke name="{name}">')
        for name in ("get_weather", "write_file", "now", "other")
    ),
    *((f"<parameter={key}>", f'<parameter name="{key}">') for key in ("city", "days", "wind", "at", "tags")),
    *((f"<parameter={key}>", f'<parameter name="{key}">') for key in ("units", "path", "text", "a")),
)

_DSML = '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">{}</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
_DSML_BEGIN, _DSML_END = "<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"
_DSML_NOW = '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n'

DSML: Recorded = [
    ("It is noon.", ["It is noon."]),
    (_DSML_BEGIN + _DSML.format("Paris") + _DSML_END, [("get_weather", PARIS)]),
    (
        "I look.\n\n" + _DSML_BEGIN + _DSML.format("Paris") + _DSML_NOW + _DSML_END,
        ["I look.", ("get_weather", PARIS), ("now", {})],
    ),
    (_DSML_BEGIN + _DSML.format("7") + _DSML_END, [("get_weather", {"city": "7"})]),
    (_DSML_BEGIN + _DSML.format("null") + _DSML_END, [("get_weather", {"city": "null"})]),
    (
        _DSML_BEGIN
        + _DSML.format("x").replace('string="true">x', 'string="false">{"a": [1, null]}')
        + _DSML_END,
        [("get_weather", {"city": {"a": [1, None]}})],
    ),
    (
        _DSML_BEGIN + _DSML.format("Zürich – 東京 🌦") + _DSML_END,
        [("get_weather", {"city": "Zürich – 東京 🌦"})],
    ),
    (
        _DSML_BEGIN + _DSML.format("a </｜DSML｜parameter> b") + _DSML_END,
        [("get_weather", {"city": "a </｜DSML｜parameter> b"})],
    ),
    (
        _DSML_BEGIN.replace("function_calls", "tool_calls") + _DSML_NOW + "</｜DSML｜tool_calls>",
        [("now", {})],
    ),
    (_DSML_BEGIN + _DSML_NOW.replace("\n<", "oops<"), [_DSML_BEGIN + _DSML_NOW.replace("\n<", "oops<")]),
    (_DSML_BEGIN + _DSML[:60], [_DSML_BEGIN + _DSML[:60]]),
    ("Is <｜DSML it?", ["Is <｜DSML it?"]),
    (_DSML_NOW + "Done.", [("now", {}), "\nDone."]),
]

_GLM = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"

GLM: Recorded = [
    ("It is noon.", ["It is noon."]),
    (_GLM.format("Paris"), [("get_weather", PARIS)]),
    (f"I look.\n{_GLM.format('Paris')}", ["I look.", ("get_weather", PARIS)]),
    (f"{_GLM.format('Paris')}\n<tool_call>now\n</tool_call>\n", [("get_weather", PARIS), ("now", {})]),
    ("<tool_call>now</tool_call>", [("now", {})]),
    (
        "<tool_call>get_weather<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>at</arg_key><arg_value>"
        '{"lat": {"a": [1]}}</arg_value></tool_call>',
        [("get_weather", {"days": 3, "at": {"lat": {"a": [1]}}})],
    ),
    (_GLM.format("3"), [("get_weather", {"city": "3"})]),
    (_GLM.format("Zürich – 東京 🌦"), [("get_weather", {"city": "Zürich – 東京 🌦"})]),
    (_GLM.format("a </arg_value> b"), [("get_weather", {"city": "a </arg_value> b"})]),
    (_GLM.format("a </tool_call> b"), [("get_weather", {"city": "a </tool_call> b"})]),
    (_GLM.replace("<arg_key>", "oops"), [_GLM.replace("<arg_key>", "oops")]),
    (_GLM[:40], [_GLM[:40]]),
    ("<tool_call>now</tool_call> Done.", [("now", {}), " Done."]),
    ("<tool_call></tool_call>", ["<tool_call></tool_call>"]),
]
