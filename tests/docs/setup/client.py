from openai import OpenAI

import rondo

client = OpenAI(base_url="http://127.0.0.1:8001/v1", api_key="none")
llm = rondo.LLM("demo")
