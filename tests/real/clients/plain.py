"""Plain HTTP requests, to compare with what the client libraries get from the same server."""

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

KEY = "secret"


def post(url: str, path: str, **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{url}{path}", json={"model": "tiny"} | body, headers=headers, timeout=60)
    assert answer.is_success, answer.text
    return answer.json()


def counted(url: str) -> list[int]:
    """Tokens of all prompts and of all answers that the server has counted since its start."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).text)
    totals = {family.name: family.samples[0].value for family in families if family.samples}
    return [int(totals[f"rondo:{kind}_tokens"]) for kind in ("prompt", "generation")]
