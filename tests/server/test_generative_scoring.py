"""How likely a token follows: what transformers' logits say."""

import httpx
import pytest
import torch
import transformers

from rondo.server import prompts

QUERY, ITEMS, LABELS = "abc def", ["gh", "ab cab", ""], [70, 75, 81, 70]


@pytest.fixture(scope="module")
def probabilities(model_folder):
    """Of the next token after each, and how many tokens that was."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def of(*texts):
        ids = [token for text in texts for token in tokenizer(text)["input_ids"]]
        return model(torch.tensor([ids])).logits[0, -1].softmax(-1), len(ids)

    return of


@pytest.mark.parametrize("first", [False, True])
def test_scores_are_those_of_transformers(running, probabilities, first):
    body = {"model": "tiny", "query": QUERY, "items": ITEMS, "label_token_ids": LABELS, "item_first": first}
    among_labels = httpx.post(running.url + "/generative_scoring", json=body).json()
    of_all = httpx.post(running.url + "/generative_scoring", json=body | {"apply_softmax": False}).json()
    total = 0
    for i, item in enumerate(ITEMS):
        expected, count = probabilities(*((item, QUERY) if first else (QUERY, item)))
        total += count
        assert of_all["data"][i]["score"] == pytest.approx(expected[70].item(), rel=1e-4)
        assert among_labels["data"][i]["score"] == pytest.approx(
            (expected[70] / expected[LABELS[:3]].sum()).item(), rel=1e-4
        )
    assert [item["index"] for item in of_all["data"]] == [0, 1, 2]
    assert of_all["usage"] == {"prompt_tokens": total, "completion_tokens": 3, "total_tokens": total + 3}


def test_token_ids_in_place_of_texts(running):
    body = {"query": [80, 81], "items": [[82], [83, 84]], "label_token_ids": [70]}
    answer = httpx.post(running.url + "/generative_scoring", json=body).json()
    assert [item["score"] for item in answer["data"]] == [1.0, 1.0]


def test_the_query_is_looked_at_once(running, monkeypatch):
    looked, check = [], prompts.check_prompt
    monkeypatch.setattr(prompts, "check_prompt", lambda ids, *rest: looked.append(ids) or check(ids, *rest))
    body = {"query": [80, 81], "items": [[82], [83, 84], []], "label_token_ids": [70]}
    assert httpx.post(running.url + "/generative_scoring", json=body).status_code == 200
    assert looked == [[80, 81], [82], [83, 84], []]


def test_query_and_item_together_must_fit(running):
    """The context is 512, and one token is the label."""
    for item, fits in ((11, True), (12, False)):
        body = {"query": [80] * 500, "items": [[81] * item], "label_token_ids": [70]}
        answer = httpx.post(running.url + "/generative_scoring", json=body)
        assert answer.is_success == fits
    assert "you requested 513 tokens (512 in the prompt" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"items": []}, 400, "items"),
        ({"items": ["a"] * 3000}, 400, "items"),
        ({"items": ["abc " * 600]}, 400, "items"),
        ({"items": ["a", [5]]}, 400, "items"),
        ({"query": "", "items": [""]}, 400, "items"),
        ({"query": [10**6], "items": [[70]]}, 400, "query"),
        ({"query": [70], "items": [[70], [10**6]]}, 400, "items"),
        ({"label_token_ids": []}, 400, "label_token_ids"),
        ({"label_token_ids": [10**6]}, 400, "label_token_ids"),
        ({"label_token_ids": [-1]}, 400, "label_token_ids"),
        ({"model": "gpt"}, 404, "model"),
        ({"priority": 1}, 400, "priority"),
    ],
)
def test_what_is_wrong_is_named(running, change, status, param):
    body = {"model": "tiny", "query": "a", "items": ["b"], "label_token_ids": [70], **change}
    answer = httpx.post(running.url + "/generative_scoring", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
