"""Run by instructor's Python with the URL of a server and its key: prints the objects that its constrained modes parse,
whole, as a stream and after a validation error."""

import json
import sys
from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel, Field, field_validator

url, key = sys.argv[1:]
api = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)


class Weather(BaseModel, extra="forbid"):
    """The weather in a city."""

    city: Literal["Paris", "Rome"]
    degrees: int = Field(ge=0, le=9)


class Doubted(Weather):
    """Rejected once, so that instructor asks again with the error in the conversation."""

    @field_validator("city")
    @classmethod
    def doubt(cls, city: str) -> str:
        tries.append(city)
        if len(tries) == 1:
            raise ValueError("look again")
        return city


tries: list[str] = []
options: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "How is the weather in Paris?"},
    ],
    "temperature": 0,
    "max_tokens": 200,
}
found: dict[str, Any] = {"structured": [], "streamed": []}
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(api, mode=mode)
    answer = client.chat.completions.create(response_model=Weather, max_retries=0, **options)
    found["structured"].append(answer.model_dump())
    *_, last = client.chat.completions.create_partial(response_model=Weather, max_retries=0, **options)
    found["streamed"].append(last.model_dump())
client = instructor.from_openai(api, mode=instructor.Mode.TOOLS)
found["again"] = client.chat.completions.create(response_model=Doubted, max_retries=2, **options).model_dump()
found["tries"] = len(tries)
print(json.dumps(found))
