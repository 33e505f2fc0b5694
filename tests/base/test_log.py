import asyncio
import io
import json
import logging
import re

import pytest

from rondo.base.telemetry.log import bind, get_logger, setup


@pytest.fixture(autouse=True)
def restore_logging():
    ours, root = logging.getLogger("rondo"), logging.getLogger()
    before = ours.handlers[:], ours.level, ours.propagate
    others = root.handlers[:]
    yield
    ours.handlers[:], ours.level, ours.propagate = before
    root.handlers[:] = others


def test_human_line():
    out = io.StringIO()
    setup("human", "info", out)
    get_logger("rondo.engine").info(
        "loaded %s", "demo", extra={"seconds": 1.23456789, "path": "a b", "empty": ""}
    )
    pattern = r'\d\d:\d\d:\d\d INFO    rondo\.engine  loaded demo  seconds=1\.23457 path="a b" empty=""\n'
    assert re.fullmatch(pattern, out.getvalue())


def test_a_message_cannot_forge_a_line():
    out = io.StringIO()
    setup("human", "info", out)
    get_logger("x").info("user said %s", "hi\n12:00:00 ERROR forged", extra={"k": "a\nb"})
    assert out.getvalue().count("\n") == 1


def test_json_line_with_traceback():
    out = io.StringIO()
    setup("json", "info", out)
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        get_logger("rondo.x").exception("failed", extra={"step": 3, "odd": {1}})
    line = json.loads(out.getvalue())
    assert (line["level"], line["logger"], line["message"], line["step"]) == ("error", "rondo.x", "failed", 3)
    assert line["odd"] == "{1}"
    assert "ValueError: bad" in line["exception"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


def test_level():
    out = io.StringIO()
    setup("human", "warning", out)
    get_logger("x").info("quiet")
    get_logger("x").warning("loud")
    assert "quiet" not in out.getvalue()
    assert "loud" in out.getvalue()


def test_warnings_of_libraries_have_the_same_form():
    out = io.StringIO()
    setup("json", "info", io.StringIO())
    setup("json", "info", out)
    logging.getLogger("asyncio").warning("Invalid HTTP request received.")
    logging.getLogger("asyncio").info("not ours to tell")
    get_logger("x").info("ours")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["logger"], line["message"]) for line in lines] == [
        ("asyncio", "Invalid HTTP request received."),
        ("rondo.x", "ours"),
    ]


def test_setup_again_replaces():
    first, second = io.StringIO(), io.StringIO()
    setup("human", "info", first)
    setup("json", "info", second)
    get_logger("x").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_standard_error_is_looked_up_late(capsys: pytest.CaptureFixture[str]):
    setup()
    get_logger("x").info("hello")
    assert "hello" in capsys.readouterr().err


def test_bound_names_follow_tasks_and_nest():
    out = io.StringIO()
    setup("json", "info", out)
    log = get_logger("x")

    async def request(name: str) -> None:
        with bind(request_id=name):
            await asyncio.sleep(0)
            with bind(step=1):
                log.info("inside", extra={"own": name})
            log.info("after")

    async def both() -> None:
        await asyncio.gather(request("a"), request("b"))

    asyncio.run(both())
    log.info("outside")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert all(
        line["request_id"] == line["own"] and line["step"] == 1
        for line in lines
        if line["message"] == "inside"
    )
    assert all("request_id" in line and "step" not in line for line in lines if line["message"] == "after")
    assert "request_id" not in lines[-1]
