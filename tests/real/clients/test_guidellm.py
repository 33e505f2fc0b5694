"""guidellm as it is against a server process: the tokens in its report are those that the server counted."""

import json
from pathlib import Path
from typing import Any

import pytest

from real.clients.plain import KEY, counted
from rondo.text.tokenizer import Tokenizer
from support.peers import peer_python, run_peer
from support.served import Served

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

REQUESTS, PROMPT, ANSWER = 10, 40, 12


def report(served: Served, folder: Path, route: str, file: Path) -> dict[str, Any]:
    """Of one benchmark of two streams with synthetic prompts."""
    options = {
        "backend": f"kind=openai_http,target={served.url},model=tiny,api_key={KEY},request_format={route}",
        "profile": "kind=concurrent,streams=2",
        "constraint": f"kind=max_requests,count={REQUESTS}",
        "tokenizer": f"kind=huggingface_auto,model={folder}",
        "data": f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER}",
        "output": f"kind=json,path={file}",
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    command = peer_python("guidellm").parent / "guidellm"
    own = {"HF_HOME": str(file.parent / "home")}
    run_peer("guidellm", command, "run", "--disable-console-interactive", *flags, seconds=200, **own)
    [benchmark] = json.loads(file.read_text())["benchmarks"]
    return benchmark


def text_of(request: dict[str, Any]) -> str:
    """The prompt that guidellm made."""
    body = json.loads(request["request_args"])["body"]
    if "prompt" in body:
        return body["prompt"]
    [message] = body["messages"]
    return "".join(part["text"] for part in message["content"])


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_token_counts_are_the_servers(served: Served, folder: Path, route: str, tmp_path: Path) -> None:
    before = counted(served.url)
    benchmark = report(served, folder, route, tmp_path / "report.json")
    done = benchmark["requests"]["successful"]
    assert len(done) == REQUESTS
    assert not benchmark["requests"]["errored"]
    assert not benchmark["requests"]["incomplete"]

    metrics = benchmark["metrics"]
    sums = [metrics[f"{kind}_token_count"]["successful"]["total_sum"] for kind in ("prompt", "output")]
    assert sums == [now - then for now, then in zip(counted(served.url), before)]
    assert sums[1] == REQUESTS * ANSWER
    tokenizer = Tokenizer.load(folder)
    for request in done:
        assert request["output_tokens"] == ANSWER
        if route == "/v1/completions":
            ids = tokenizer.encode(text_of(request))
        else:
            asked = [{"role": "user", "content": text_of(request)}]
            ids = tokenizer.encode(tokenizer.render(asked), add_special=False)
        assert request["prompt_tokens"] == len(ids)
