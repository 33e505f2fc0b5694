"""docs/request-fields.md has each tested field once, with its routes and what becomes of it."""

import re
from pathlib import Path

from rondo.client.protocol.openai import ChatRequest, CompletionRequest
from server.test_request_fields import ONLY_COMPLETIONS, TABLE

DOCUMENT = Path(__file__).parents[2] / "docs" / "request-fields.md"
ROW = re.compile(r"\| `(\w+)` \| (\w+) \| ([\w ]+) \| .+ \|")
STATUS = {"works": "works", "ignored": "no effect", "refused": "refused"}
KINDS = {"chat": ChatRequest, "completions": CompletionRequest}
ROWS = [match.groups() for line in DOCUMENT.read_text().splitlines() if (match := ROW.fullmatch(line))]


def routes_of(field: str) -> str:
    parts = {part for part, outcomes in TABLE.items() if any(field in fields for fields in outcomes.values())}
    if field in ONLY_COMPLETIONS:
        return "completions"
    return "both" if "both" in parts or len(parts) > 1 else parts.pop()


def test_each_field_has_one_row_with_its_routes():
    tested = {field for outcomes in TABLE.values() for fields in outcomes.values() for field in fields}
    assert [(field, routes) for field, routes, _ in ROWS] == [(f, routes_of(f)) for f in sorted(tested)]


def test_each_row_has_the_status_that_is_tested():
    status = {field: said for field, _, said in ROWS}
    for outcomes in TABLE.values():
        for outcome, said in STATUS.items():
            assert {field: status[field] for field in outcomes[outcome]} == dict.fromkeys(
                outcomes[outcome], said
            )


def test_fields_of_the_models_are_not_shown_as_refused():
    for field, routes, said in ROWS:
        kinds = KINDS.values() if routes == "both" else [KINDS[routes]]
        known = all(field in kind.model_fields for kind in kinds)
        ignored = any(field in kind.without_effect for kind in kinds)
        if field != "suffix":  # only null
            assert (said != "refused", said == "no effect") == (known, ignored), field
