"""ScalarLM's client as its documentation uses it, against the URL in the first argument. Prints JSON."""

import asyncio
import json
import sys

from scalarlm import AsyncSupermassiveIntelligence, SupermassiveIntelligence

llm = SupermassiveIntelligence(api_url=sys.argv[1])


def failure(prompts: list[str], model: str | None = None) -> str:
    try:
        llm.generate(prompts=prompts, model_name=model)
    except Exception as error:
        return str(error)
    return ""


async def in_parts() -> list[str]:
    own = AsyncSupermassiveIntelligence(api_url=sys.argv[1])
    shown = await own.submit_generate(["a", "b"], None, 4)
    ids = [each["request_id"] for each in shown["results"]]
    while any(each["response"] is None for each in shown["results"]):
        shown = await own.get_results(ids)
    return [each["response"] for each in shown["results"]]


async def at_once() -> list[list[str]]:
    own = AsyncSupermassiveIntelligence(api_url=sys.argv[1])
    return await asyncio.gather(*(own.generate([f"{place}?"], max_tokens=4) for place in range(8)))


few = llm.generate(prompts=["hello", "what is 2 + 2?", "hello"], max_tokens=8)
many = [f"{place} + {place} =" for place in range(150)]
found = {
    "few": few,
    "alone": llm.generate(prompts=["hello"], max_tokens=8),
    "null": llm.generate(prompts=["hello"]),
    "many": llm.generate(prompts=many, max_tokens=4),
    "some": llm.generate(prompts=many[:3], max_tokens=4),
    "parts": asyncio.run(in_parts()),
    "at_once": asyncio.run(at_once()),
    "unknown": failure(["hello"], "missing"),
    "long": failure(["word " * 5000]),
    "long_many": failure(["word " * 5000, *many]),
    "metrics": llm.metrics(),
    "health": llm.health(),
    "cleared": llm.clear_queue(),
}
print(json.dumps(found))
